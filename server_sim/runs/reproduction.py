"""From a run's resolved settings back to a command line that gives them, and so the run, again."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from server_sim.experiment import Experiment, experiment_names, load_experiment
from server_sim.runs.records import flat_settings
from server_sim.runs.tables import table_runs

FILE = "experiment.toml"


def reproduction_command(experiment: Experiment) -> str:
    """The shortest `fedss simulate` line over the experiments of the package, or one over a file that it writes first."""
    candidates = [
        command for name in experiment_names() if (command := _over_named(name, experiment)) is not None
    ]
    return min(candidates, key=len, default=_over_file(experiment))


def table_command(runs: list[Experiment]) -> str | None:
    """The line that makes all these runs at once, where an experiment of the package has them as its table."""
    for name in experiment_names():
        loaded = load_experiment(name)
        if loaded.table is None:
            continue
        planned = [run.experiment for run in table_runs(loaded)]
        if all(run in planned for run in runs):
            return f"fedss simulate {name}"
    return None


def _over_named(name: str, experiment: Experiment) -> str | None:
    base = load_experiment(name)
    if base.table is not None:
        return None
    wanted, given = flat_settings(experiment), flat_settings(base)
    changes = {field: value for field, value in wanted.items() if field not in given or value != given[field]}
    if None in changes.values():
        return None  # a file leaves out what is not set, and reads better than --set FIELD=none
    words = ["fedss", "simulate", name]
    for field, option in (("server.rounds", "--rounds"), ("seed", "--seed")):
        if field in changes:
            words += [option, str(changes.pop(field))]
    for field, value in changes.items():
        words += ["--set", f"{field}={value if _is_plain_word(value) else _toml(value)}"]
    return shlex.join(words)


def _over_file(experiment: Experiment) -> str:
    content = experiment.model_dump(mode="json", exclude={"table"}, exclude_none=True)
    lines = [f"{name} = {_toml(value)}" for name, value in content.items() if not isinstance(value, dict)]
    for section, values in content.items():
        if isinstance(values, dict):
            lines += ["", f"[{section}]", *(f"{name} = {_toml(value)}" for name, value in values.items())]
    text = "\n".join(lines)
    return f"cat > {FILE} <<'END'\n{text}\nEND\nfedss simulate {FILE}"


def _is_plain_word(value: Any) -> bool:
    """What --set takes as a string without quotes."""
    words_of_toml = ("true", "false", "inf", "nan")
    return (
        isinstance(value, str)
        and bool(re.fullmatch(r"[A-Za-z_][\w./-]*", value))
        and value not in words_of_toml
    )


def _toml(value: Any) -> str:
    """Strings, numbers and booleans, which JSON and TOML write alike, and lists and tables of them, which they do not."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(name)} = {_toml(own)}' for name, own in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
