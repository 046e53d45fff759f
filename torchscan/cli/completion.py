"""``torchscan completion``: a script that lets a shell complete commands, options and their choices."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from torchscan.cli.arguments import add_command
from torchscan.cli.saying import answer

_SETUP = """\
  bash   eval "$(torchscan completion bash)"        in ~/.bashrc
  zsh    eval "$(torchscan completion zsh)"         in ~/.zshrc, after compinit
  fish   torchscan completion fish | source         in ~/.config/fish/config.fish"""

#: options that take a file
_FILES = ("--output", "--config")
_COLLECTIONS = "torchvision: timm: hf:"


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = add_command(commands, "completion", "a script for completion in a shell", _SETUP, run=_run)
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
    named = {name: " ".join(map(str, action.choices)) for names, action in _options(parser) if action.choices for name in names}
    bare = [action for action in parser._actions if not action.option_strings]
    words = [" ".join(map(str, action.choices)) if action.choices else _COLLECTIONS for action in bare if _completes(action)]
    return named | ({"": " ".join(words)} if words else {})


def _completes(action: argparse.Action) -> bool:
    return bool(action.choices) or action.dest in ("target", "before", "after")


def _bash(commands: Any) -> str:
    cases = "\n".join(_bash_case(name, parser) for name, parser in commands.choices.items())
    return f"""\
_torchscan() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words= choices=
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(commands.choices)} --help --version" -- "$current"))
        return
    fi
    case "$before" in {"|".join(_FILES)}) COMPREPLY=($(compgen -f -- "$current")); return ;; esac
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    if [ -n "$choices" ]; then COMPREPLY=($(compgen -W "$choices" -- "$current"))
    elif [[ "$current" == -* ]]; then COMPREPLY=($(compgen -W "$words" -- "$current"))
    else COMPREPLY=($(compgen -W "$bare" -- "$current") $(compgen -f -- "$current")); fi
}}
complete -o nospace -F _torchscan torchscan"""


def _bash_case(name: str, parser: argparse.ArgumentParser) -> str:
    words = " ".join(option for options, _ in _options(parser) for option in options)
    choices = dict(_choices(parser))
    bare = choices.pop("", "")
    inner = " ".join(f'{option}) choices="{values}" ;;' for option, values in choices.items())
    takes = f' case "$before" in {inner} esac' if inner else ""
    return f'        {name}) words="{words}"; bare="{bare}";{takes} ;;'.replace(";; ;;", ";;")


def _zsh(commands: Any) -> str:
    return f"autoload -Uz bashcompinit && bashcompinit\n{_bash(commands)}"


def _fish(commands: Any) -> str:
    lines = ["complete -c torchscan -f"]
    for name, parser in commands.choices.items():
        help_ = next(each.help for each in commands._choices_actions if each.dest == name)
        lines.append(f"complete -c torchscan -n __fish_use_subcommand -a {name} -d {_quoted(help_)}")
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        for options, action in _options(parser):
            values = f" -x -a {_quoted(' '.join(map(str, action.choices)))}" if action.choices else _fish_argument(action)
            lines += [
                f"complete -c torchscan {seen} -l {option.lstrip('-')}{values} -d {_quoted(action.help or '')}"
                for option in options
            ]
        bare = _choices(parser).get("")
        lines.append(f"complete -c torchscan {seen} {f'-a {_quoted(bare)}' if bare else ''} -F")
    return "\n".join(lines)


def _fish_argument(action: argparse.Action) -> str:
    return "" if action.nargs == 0 else " -r" if action.option_strings[-1] in _FILES else " -x"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
