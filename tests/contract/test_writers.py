"""Only the modules named here write, rename or remove files by path.

Everything inside a run folder goes through `engine/run/folder/open_folder.py`, which stays inside
the folder whatever links and names are in it.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WRITERS = {
    "engine/run/folder/open_folder.py": "the way into a run folder",
    "engine/run/files.py": "write_atomically, for the folders of the user",
    "engine/run/run_dir.py": "creates the runs folder and the folder of a new run",
    "engine/run/known_runs.py": "the state folder of the user",
    "engine/run/identity/trusted_code.py": "the state folder of the user",
    "engine/run/identity/hash_cache.py": "the cache of the user",
    "engine/run/processes/marks.py": "the runtime folder of the user",
    "engine/run/processes/left_over_sockets.py": "the runtime folder of the user",
    "engine/run/folder/folder_keeper.py": "makes the folder of a live run again that was removed",
    "engine/run/journal.py": "truncates its own file by descriptor",
    "engine/hub/sockets.py": "the sockets in the runtime folder",
    "engine/config/reference.py": "a page of the documentation",
    "engine/config/reasons_table.py": "a page of the documentation",
    "engine/run/reference/__main__.py": "pages of the documentation",
    "tui/cli/reference/__main__.py": "pages of the documentation",
    "tui/cli/shell/man_page.py": "a page of the documentation",
    "engine/export/": "a folder that the user names",
    "engine/data/": "the cache of tokenized data of the user",
    "engine/followers/trackers/destinations.py": "the folder of event files that the user names",
    "engine/followers/trackers/sinks/tensorboard.py": "truncates its own file by descriptor",
    "engine/model/files/model_list.py": "the cache of the user",
    "engine/model/files/package_model.py": "the cache of the user",
    "engine/telemetry/logs.py": "logs of a run folder, which was checked for links before",
    "engine/train/checkpoint/node_files.py": "a checkpoint folder that was just made",
    "engine/train/checkpoint/training_state.py": "a checkpoint folder that was just made",
    "engine/train/journal_writer.py": "reserves space in its own file by descriptor",
    "engine/train/monitoring/profiler.py": "traces in a run folder, checked for links before",
    "engine/watch/foreign_state.py": "a checkpoint folder that was just made",
    "engine/watch/script_run.py": "the folder that `fttui exec` has made for its children",
    "tui/cli/outward/metrics.py": "a new file that the user names",
    "tui/cli/preflight/import_config.py": "a new file that the user names",
    "tui/cli/preflight/init_config.py": "a new file that the user names, and a temporary draft",
    "tui/cli/cluster/launch.py": "a batch script that the user asks for",
    "tui/cli/execute.py": "the folder in which watched runs announce themselves",
    "tui/screens/handlers/sharing.py": "a picture of the screen, in the current folder",
    "tui/preferences.py": "the state folder of the user",
    "tui/cli/temporary_runs/profile.py": "copies traces to a folder that the user names",
    "tui/connection/race/race_file.py": "truncates its own lock file by descriptor",
    "tui/connection/race/side_folder.py": "a new run folder, in a run folder checked for links",
    "tui/cli/sweep/sweep_folder.py": "the folder of a sweep, beside the runs",
    "tui/connection/ssh/hosts.py": "the state folder of the user",
}
METHODS = frozenset(
    {
        "write_text", "write_bytes", "unlink", "rmdir", "mkdir", "touch", "symlink_to", "rename",
        "ftruncate", "truncate", "removedirs", "makedirs", "rmtree", "write_atomically",
        "copyfile", "copytree", "FileHandler",
    }
)  # fmt: skip
OF_OS = frozenset(
    {"os.replace", "os.remove", "os.link", "os.symlink", "os.posix_fallocate", "shutil.move"}
)


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func)


def _writes(call: ast.Call) -> bool:
    name = _name(call)
    method = name.rpartition(".")[2]
    if name in ("open", "gzip.open") or (method == "open" and not name.startswith("os.")):
        given = (*call.args, *(keyword.value for keyword in call.keywords))
        texts = [a.value for a in given if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        return any(set(t) & set("wax+") and set(t) <= set("rwaxbt+") for t in texts)
    if name == "os.open":
        text = ast.unparse(call)
        return "devnull" not in text and any(f in text for f in ("O_WRONLY", "O_RDWR", "O_CREAT"))
    if name in OF_OS:
        return True
    # The pieces of a text are truncated by a method of the same name.
    return method in METHODS and not (method == "truncate" and call.keywords)


def _through_a_folder(call: ast.Call) -> bool:
    """Whether it is a method of an open folder or of the store of checkpoints."""
    return _name(call).partition(".")[0] in ("folder", "checkpoints")


def test_files_are_written_only_where_it_is_known() -> None:
    found: dict[str, list[str]] = {}
    for package in ("engine", "tui"):
        for file in sorted((ROOT / package).rglob("*.py")):
            name = str(file.relative_to(ROOT))
            if any(name.startswith(writer) for writer in WRITERS):
                continue
            tree = ast.parse(file.read_text(encoding="utf-8"))
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
            writing = [c for c in calls if _writes(c) and not _through_a_folder(c)]
            if writing:
                found[name] = [f"{call.lineno}: {_name(call)}" for call in writing]
    assert found == {}


def test_every_writer_still_writes() -> None:
    for writer in WRITERS:
        files = (ROOT / writer).rglob("*.py") if writer.endswith("/") else [ROOT / writer]
        calls = (
            node
            for file in files
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        )
        assert any(map(_writes, calls)), writer
