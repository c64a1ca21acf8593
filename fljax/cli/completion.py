"""`fljax completion`."""

import importlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fljax import _near, cli
from fljax.cli import _args, _output

SHELLS = ("bash", "zsh", "fish")
_WITHOUT_OPTIONS = ("simulate", "schemes", "completion")  # the flags of simulate depend on a scheme
_HELP = """usage: fljax completion bash|zsh|fish

Prints a script by which the shell completes commands, flags and names of schemes, data sets and
models. bash, zsh: eval "$(fljax completion bash)" in ~/.bashrc or ~/.zshrc. fish: fljax completion
fish > ~/.config/fish/completions/fljax.fish. It knows what was installed when it was made."""

_BASH = """_fljax() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} known=""
  if ((COMP_CWORD == 1)); then known={commands}; else
    case "$before" in
{values}
    esac
    if [[ -z "$known" && "$word" == -* ]]; then
      case "${{COMP_WORDS[1]}}" in
{flags}
      esac
    fi
  fi
  COMPREPLY=($(compgen -W "$known" -- "$word"))
}}
complete -o default -F _fljax fljax
"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def _spelled(cls: type) -> list[str]:
    """Flags of a dataclass of options, those that switch something off included."""
    found = []
    for flag, hint in _args.flags(cls).items():
        found += [flag, f"--no-{flag[2:]}"] if hint is bool else [flag]
    return found


def flags() -> dict[str, list[str]]:
    """Command -> its flags; of `simulate` those of every scheme."""
    from fljax import schemes
    from fljax.cli import simulate
    from fljax.simulation.config import SECTIONS

    found = {}
    for command in cli.COMMANDS:
        own = []
        if command not in _WITHOUT_OPTIONS:
            own = _spelled(importlib.import_module(f"fljax.cli.{command}").Options)
        if command in ("simulate", "account", "calibrate"):
            kinds: list[Any] = [entry.thing.Config for entry in schemes.listed() if entry.thing]
            if command == "simulate":
                own = ["--run-dir", "--resume", "--scheme"]
                kinds += [simulate.Machine, *SECTIONS.values()]
            own = [*own, *(flag for kind in kinds for flag in _spelled(kind))]
        found[command] = sorted({*own, "--help", "--json", "--quiet"})
    return found


def values() -> dict[str, list[str]]:
    """Flag -> the names that it knows."""
    from fljax import attacks, models, schemes
    from fljax.data import builtin, partition
    from fljax.simulation.config import SUBJECT_PARTITIONS

    return {
        "--scheme": list(schemes.names()),
        "--dataset": list(builtin.names()),
        "--model": list(models.names()),
        "--loss": list(models.LOSSES),
        "--attack": [*attacks.PROGRAMS, *(entry.name for entry in attacks.listed())],
        "--partition": [*partition.NAMES, *SUBJECT_PARTITIONS],
        "--to": ["safetensors", "orbax", "npz"],
    }


def _arms(words: Mapping[str, Sequence[str]]) -> str:
    return "\n".join(
        f"      {name}) known={shlex.quote(' '.join(names))} ;;" for name, names in words.items()
    )


def script(shell: str) -> str:
    """What the shell is to read. Raises ValueError for a shell that is none of SHELLS."""
    if shell not in SHELLS:
        hint = _near.did_you_mean(shell, SHELLS)
        raise ValueError(f"Expected a shell among {list(SHELLS)}, got {shell!r}.{hint}")
    if shell != "fish":
        commands = shlex.quote(" ".join(cli.COMMANDS))
        text = _BASH.format(commands=commands, values=_arms(values()), flags=_arms(flags()))
        return (_ZSH if shell == "zsh" else "") + text
    lines = []
    for command, summary in cli.COMMANDS.items():
        told = shlex.quote(summary)
        lines.append(f"complete -c fljax -f -n __fish_use_subcommand -a {command} -d {told}")
    for command, known in flags().items():
        seen = f"'__fish_seen_subcommand_from {command}'"
        lines += [f"complete -c fljax -n {seen} -l {flag[2:]}" for flag in known]
    for flag, names in values().items():
        lines.append(f"complete -c fljax -l {flag[2:]} -x -a {shlex.quote(' '.join(names))}")
    return "\n".join(lines) + "\n"


def main(args: Sequence[str]) -> int:
    """Prints the script."""
    if {"-h", "--help"} & set(args):
        print(_HELP)
        return 0
    if len(args) != 1:
        raise ValueError(f"Expected one shell among {list(SHELLS)}, got {list(args)}.")
    text = script(args[0])
    _output.give({"shell": args[0], "script": text})
    print(text, end="")
    return 0
