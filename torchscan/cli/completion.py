"""``torchscan completion``: a script that completes commands, options and their choices."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import re
from pathlib import Path
from typing import Any

from torchscan.cli.option_values import CHECKPOINTS, COMPARE, to_checkpoint_or_comparison
from torchscan.cli.options import add_command, command_groups, parsers_by_command
from torchscan.cli.output import print_answer
from torchscan.errors import InputError
from torchscan.hardware.device_catalog import known_devices
from torchscan.report.columns import COLUMNS

_SETUP = """\
  bash   eval "$(torchscan completion bash)"        in ~/.bashrc
  zsh    eval "$(torchscan completion zsh)"         in ~/.zshrc, after compinit
  fish   torchscan completion fish | source         in ~/.config/fish/config.fish"""

_COLLECTIONS = ("torchvision:", "timm:", "hf:")
#: models in the code of torchvision, which takes seconds to import
_MODEL = re.compile(
    r'^@register_model\((?:name="(\w+)")?\).*?^def (\w+)\(', re.MULTILINE | re.DOTALL
)

#: completes a command line; doubled braces are single ones in the script
_BASH_FUNCTION = """\
_torchscan() {{
    local at=$COMP_CWORD current=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]}}
    local start= words= choices= bare= inner= name
    local targets="{collections}"
    # bash takes the colon for a separate word, and completes what follows it
    if [ "$current" = : ]; then at=$((at-1)); start=${{COMP_WORDS[at]}}:; current=$start
    elif [ "$at" -gt 2 ] && [ "${{COMP_WORDS[at-1]}}" = : ]; then
        at=$((at-2)); start=${{COMP_WORDS[at]}}:; current=$start$current
    fi
    local before=${{COMP_WORDS[at-1]}}
    if [[ "$current" == *:* ]]; then targets="{models}"; fi
    COMPREPLY=()
    if [ "$at" -eq 1 ]; then {offer_commands}; return; fi
    case "$command" in {groups}esac
    if [ -n "$inner" ]; then
        if [ "$at" -eq 2 ]; then COMPREPLY=($(compgen -W "$inner --help" -- "$current")); return; fi
        command="$command ${{COMP_WORDS[2]}}"
    fi
    if [[ " ${{COMP_WORDS[*]:2:at-2}} " == *" -- "* ]]; then {offer_files}; return; fi
    case "$before" in
        {files}) {offer_files}; return ;;
        --columns) name=${{current##*,}}
            COMPREPLY=($(compgen -P "${{current%"$name"}}" -W "{columns}" -- "$name")); return ;;
        --device|-d) _torchscan_devices "$current"; return ;;
    esac
    case "$command" in
{cases}
    esac
    if [ -n "$choices" ]; then COMPREPLY=($(compgen -W "$choices" -- "$current"))
    elif [[ "$current" == -* ]]; then COMPREPLY=($(compgen -W "$words" -- "$current"))
    elif [ "$command" = devices ]; then _torchscan_devices "$current"
    else COMPREPLY=($(compgen -W "$bare" -- "$current") $(compgen -f -- "$current")); fi
    COMPREPLY=("${{COMPREPLY[@]#"$start"}}")
}}"""


def add_to(commands: Any) -> None:
    """Register the command."""
    help_ = "Print a completion script for a shell."
    parser = add_command(commands, "completion", help_, _SETUP, run=_run)
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="Choose the shell.")


def _run(options: argparse.Namespace) -> None:
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell]
    print_answer(script(options.commands))


def _choices(action: argparse.Action) -> str:
    """Return the words that complete an option or argument, or "" if there are none."""
    known = {"sort": COLUMNS, "run_on": ("cpu", "cuda"), "checkpoint": tuple(CHECKPOINTS)}
    if action.type is to_checkpoint_or_comparison:
        known["checkpoint"] = (*CHECKPOINTS, COMPARE)
    words = action.choices or getattr(action, "words", None) or ()
    return " ".join(map(str, known.get(action.dest, words)))


def _bare_choices(parser: argparse.ArgumentParser, targets: str) -> str:
    """Return the words that complete arguments; models are ``targets``."""
    arguments = [action for action in parser._actions if not action.option_strings]
    if any(action.dest in ("target", "before") for action in arguments):
        return targets
    return " ".join(map(_choices, arguments)).strip()


def _torchvision_models() -> list[str]:
    """Return the targets of all models of torchvision."""
    package = importlib.util.find_spec("torchvision")
    folders = package.submodule_search_locations if package is not None else None
    names: list[str] = []
    for folder in folders or ():
        for file in Path(folder, "models").rglob("*.py"):
            found = _MODEL.findall(file.read_text(encoding="utf-8"))
            names += [given or function for given, function in found]
    return sorted(f"torchvision:{name}" for name in names)


def _bash(commands: Any) -> str:
    words, devices = _bash_words(commands), _bash_devices()
    return f"{words}\n{devices}\ncomplete -o nospace -F _torchscan torchscan"


def _zsh(commands: Any) -> str:
    return f"autoload -Uz bashcompinit && bashcompinit\n{_bash(commands)}"


def _bash_words(commands: Any) -> str:
    groups = ""
    for name, inner in command_groups(commands).items():
        groups += f'{name}) inner="{" ".join(inner.choices)}" ;; '
    names = " ".join(commands.choices)
    offer = 'COMPREPLY=($(compgen {} -- "$current"))'.format
    parsers = parsers_by_command(commands)
    files: set[str] = set()
    for parser in parsers.values():
        flags = parser._option_string_actions.items()
        files.update(flag for flag, action in flags if action.type is Path)
    return _BASH_FUNCTION.format(
        collections=" ".join(_COLLECTIONS),
        models=" ".join(_torchvision_models()),
        offer_commands=offer(f'-W "{names} --help --version"'),
        offer_files=offer("-f"),
        groups=groups,
        files="|".join(sorted(files)),
        columns=" ".join(COLUMNS),
        cases="\n".join(_bash_case(name, parser) for name, parser in parsers.items()),
    )


def _bash_case(name: str, parser: argparse.ArgumentParser) -> str:
    """Return the words, and the choices after each option, of a command."""
    words = " ".join(flag for flag in parser._option_string_actions if flag.startswith("--"))
    lines = [f'        "{name}") words="{words}"; bare="{_bare_choices(parser, "$targets")}"']
    for flag, action in parser._option_string_actions.items():
        if _choices(action):
            lines.append(f'[ "$before" != {flag} ] || choices="{_choices(action)}"')
    return "; ".join(lines) + " ;;"


def _device_forms(name: str) -> list[str]:
    """Return the name of a device, and what remains without its first words if it is accepted."""
    from torchscan.hardware.device_specs import device_named

    words = name.split(" ")
    forms = [name]
    for start in range(1, len(words)):
        form = " ".join(words[start:])
        with contextlib.suppress(InputError):
            if device_named(form).name == name:
                forms.append(form)
    return forms


def _bash_devices() -> str:
    names = "\n".join("|".join([*_device_forms(name), ""]) for name in known_devices())
    return f"""\
# completes the first form of each name that begins so; escapes spaces, unless after a quote
_torchscan_devices() {{
    local line form begun="${{1//\\\\/}}"
    begun=${{begun#[\\"\\']}}
    while IFS= read -r line; do
        while [ -n "$line" ]; do
            form=${{line%%|*}}
            line=${{line#*|}}
            [[ "$form" == "$begun"* ]] || continue
            case "$1" in
                [\\"\\']*) COMPREPLY+=("$form") ;;
                *) COMPREPLY+=("${{form// /\\\\ }}") ;;
            esac
            break
        done
    done << 'END'
{names}
END
}}"""


def _fish(commands: Any) -> str:
    lines = ["complete -c torchscan -f"]
    lines += _fish_names(commands, "__fish_use_subcommand")
    for name, inner in command_groups(commands).items():
        is_open = f"{_fish_seen(name)}; and not {_fish_seen(*inner.choices)}"
        lines += _fish_names(inner, is_open)
    for name, parser in parsers_by_command(commands).items():
        lines += _fish_command(name, parser)
    return "\n".join(lines)


def _fish_names(commands: Any, condition: str) -> list[str]:
    return [
        f"complete -c torchscan -n '{condition}' -a {each.dest} -d {_quoted(each.help)}"
        for each in commands._choices_actions
    ]


def _fish_seen(*names: str) -> str:
    return f"__fish_seen_subcommand_from {' '.join(names)}"


def _fish_command(name: str, parser: argparse.ArgumentParser) -> list[str]:
    condition = "; and ".join(map(_fish_seen, name.split()))
    start = f"complete -c torchscan -n '{condition}'"
    lines = []
    for flag, action in parser._option_string_actions.items():
        option = f"-l {flag.lstrip('-')}" if flag.startswith("--") else f"-s {flag.lstrip('-')}"
        help_ = _quoted(action.help or "")
        lines.append(f"{start} {option}{_fish_values(action)} -d {help_}")
    bare = _bare_choices(parser, " ".join([*_COLLECTIONS, *_torchvision_models()]))
    if name == "devices":
        bare = _fish_devices()
    arguments = f"-a {_quoted(bare)} -F" if bare else "-F"
    return [*lines, f"{start} {arguments}"]


def _fish_values(action: argparse.Action) -> str:
    """Return the arguments of ``complete`` for what follows an option."""
    if action.nargs == 0:
        return ""
    values = _choices(action)
    if action.dest == "columns":
        values = f"(__fish_append , {' '.join(COLUMNS)})"
    if action.dest == "device":
        values = _fish_devices()
    if values:
        return f" -x -a {_quoted(values)}"
    return " -r" if action.type is Path else " -x"


def _fish_devices() -> str:
    return " ".join(map(_quoted, known_devices()))


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
