"""``torchscan completion``: a script that lets a shell complete commands, options and their choices."""

from __future__ import annotations

import argparse
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torchscan.cli.options import add_command
from torchscan.cli.saying import answer
from torchscan.hardware.device_specs import known_devices
from torchscan.report.columns import COLUMNS

_SETUP = """\
  bash   eval "$(torchscan completion bash)"        in ~/.bashrc
  zsh    eval "$(torchscan completion zsh)"         in ~/.zshrc, after compinit
  fish   torchscan completion fish | source         in ~/.config/fish/config.fish"""

#: options that take a file
_FILES = ("--output", "--config", "--save", "--trace")
#: what it means of this machine, where the list of known devices is not meant
_DEVICES_HERE = "cpu cuda"
_COLLECTIONS = ("torchvision:", "timm:", "hf:")
#: models in the code of torchvision, which takes seconds to import
_MODEL = re.compile(
    r'^@register_model\((?:name="(\w+)")?\).*?^def (\w+)\(', re.MULTILINE | re.DOTALL
)


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands, "completion", "a script for completion in a shell", _SETUP, run=_run
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(commands=commands)


def _run(options: argparse.Namespace) -> None:
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell]
    answer(script(options.commands))


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[list[str], argparse.Action]]:
    for action in parser._actions:
        if action.option_strings:
            yield [name for name in action.option_strings if name.startswith("--")], action


def _choices(parser: argparse.ArgumentParser) -> Mapping[str, str]:
    """Option ("" for positional arguments) -> the words that complete it."""
    named = {
        name: " ".join(map(str, action.choices))
        for names, action in _options(parser)
        if action.choices
        for name in names
    }
    named |= {
        name: " ".join(COLUMNS)
        for names, _ in _options(parser)
        for name in names
        if name == "--sort"
    }
    named |= {
        name: _DEVICES_HERE
        for names, action in _options(parser)
        for name in names
        if _is_device_here(action)
    }
    bare = [
        " ".join(map(str, action.choices))
        for action in parser._actions
        if action.choices and not action.option_strings
    ]
    return named | ({"": " ".join(bare)} if bare else {})


def _is_device_here(action: argparse.Action) -> bool:
    return action.dest == "device" and action.metavar != "NAME"


def _takes_targets(parser: argparse.ArgumentParser) -> bool:
    return any(action.dest in ("target", "before") for action in parser._actions)


def _torchvision_models() -> list[str]:
    """As targets."""
    found = importlib.util.find_spec("torchvision")
    folders = found.submodule_search_locations if found is not None else None
    files = [file for folder in folders or () for file in Path(folder, "models").rglob("*.py")]
    found_in = (pair for file in files for pair in _MODEL.findall(file.read_text(encoding="utf-8")))
    return sorted(f"torchvision:{given or own}" for given, own in found_in)


def _bash(commands: Any) -> str:
    return (
        f"{_bash_words(commands)}\n{_bash_devices()}\ncomplete -o nospace -F _torchscan torchscan"
    )


def _bash_words(commands: Any) -> str:
    cases = "\n".join(_bash_case(name, parser) for name, parser in commands.choices.items())
    return f"""\
_torchscan() {{
    local at=$COMP_CWORD current=${{COMP_WORDS[COMP_CWORD]}} start= words= choices= bare= name
    local targets="{" ".join(_COLLECTIONS)}"
    # bash takes the colon for a word of its own, and completes what follows it
    if [ "$current" = : ]; then at=$((at-1)); start=${{COMP_WORDS[at]}}:; current=$start
    elif [ "$at" -gt 2 ] && [ "${{COMP_WORDS[at-1]}}" = : ]; then
        at=$((at-2)); start=${{COMP_WORDS[at]}}:; current=$start$current
    fi
    local before=${{COMP_WORDS[at-1]}}
    if [[ "$current" == *:* ]]; then targets="{" ".join(_torchvision_models())}"; fi
    COMPREPLY=()
    if [ "$at" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(commands.choices)} --help --version" -- "$current"))
        return
    fi
    case "$before" in
        {"|".join(_FILES)}) COMPREPLY=($(compgen -f -- "$current")); return ;;
        --columns) name=${{current##*,}}
            COMPREPLY=($(compgen -P "${{current%"$name"}}" -W "{" ".join(COLUMNS)}" -- "$name")); return ;;
        --device) if [ "${{COMP_WORDS[1]}}" != inspect ]; then _torchscan_devices "$current"; return; fi ;;
    esac
    if [[ " ${{COMP_WORDS[*]:2:at-2}} " == *" -- "* ]]; then COMPREPLY=($(compgen -f -- "$current")); return; fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    if [ -n "$choices" ]; then COMPREPLY=($(compgen -W "$choices" -- "$current"))
    elif [[ "$current" == -* ]]; then COMPREPLY=($(compgen -W "$words" -- "$current"))
    elif [ "${{COMP_WORDS[1]}}" = devices ]; then _torchscan_devices "$current"
    else COMPREPLY=($(compgen -W "$bare" -- "$current") $(compgen -f -- "$current")); fi
    COMPREPLY=("${{COMPREPLY[@]#"$start"}}")
}}"""


def _bash_devices() -> str:
    names = "\n".join(known_devices())
    return f"""\
# names with spaces in them, from the beginning of any word; after a quote as they are, else with backslashes
_torchscan_devices() {{
    local rest begun="${{1//\\\\/}}"
    begun=${{begun#[\\"\\']}}
    while IFS= read -r rest; do
        while [[ "$rest" == *" "* && "$rest" != "$begun"* ]]; do rest="${{rest#* }}"; done
        [[ "$rest" == "$begun"* ]] || continue
        case "$1" in [\\"\\']*) COMPREPLY+=("$rest") ;; *) COMPREPLY+=("${{rest// /\\\\ }}") ;; esac
    done << 'END'
{names}
END
}}"""


def _bash_case(name: str, parser: argparse.ArgumentParser) -> str:
    words = " ".join(option for options, _ in _options(parser) for option in options)
    choices = dict(_choices(parser))
    bare = "$targets" if _takes_targets(parser) else choices.pop("", "")
    inner = " ".join(f'{option}) choices="{values}" ;;' for option, values in choices.items())
    takes = f' case "$before" in {inner} esac' if inner else ""
    return f'        {name}) words="{words}"; bare="{bare}";{takes} ;;'.replace(";; ;;", ";;")


def _zsh(commands: Any) -> str:
    return f"autoload -Uz bashcompinit && bashcompinit\n{_bash(commands)}"


def _fish(commands: Any) -> str:
    lines = ["complete -c torchscan -f"]
    for name, parser in commands.choices.items():
        help_ = next(each.help for each in commands._choices_actions if each.dest == name)
        lines.append(
            f"complete -c torchscan -n __fish_use_subcommand -a {name} -d {_quoted(help_)}"
        )
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        for options, action in _options(parser):
            lines += [
                f"complete -c torchscan {seen} -l {option.lstrip('-')}{_fish_argument(option, action, parser)}"
                f" -d {_quoted(action.help or '')}"
                for option in options
            ]
        bare = _fish_bare(name, parser)
        lines.append(f"complete -c torchscan {seen} {f'-a {_quoted(bare)}' if bare else ''} -F")
    return "\n".join(lines)


def _fish_argument(option: str, action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    values = _choices(parser).get(option)
    if option == "--columns":
        values = f"(__fish_append , {' '.join(COLUMNS)})"
    if option == "--device" and not _is_device_here(action):
        values = _fish_devices()
    plain = "" if action.nargs == 0 else " -r" if option in _FILES else " -x"
    return plain if values is None else f" -x -a {_quoted(values)}"


def _fish_bare(name: str, parser: argparse.ArgumentParser) -> str:
    if name == "devices":
        return _fish_devices()
    return (
        " ".join([*_COLLECTIONS, *_torchvision_models()])
        if _takes_targets(parser)
        else _choices(parser).get("", "")
    )


def _fish_devices() -> str:
    return " ".join(map(_quoted, known_devices()))


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
