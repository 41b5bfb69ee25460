"""An upload puts every file of an export on the hub, and a failure leaves the export."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.hub import LocalHub, local_hub

CODE = """
import sys
from pathlib import Path
from fttui.engine.errors import FttuiError
from fttui.engine.export.push import push
try:
    public = "public" in sys.argv
    print(push(Path(sys.argv[1]), "me/tiny", public=public, progress=lambda *_: None))
except FttuiError as error:
    print("refused:", error)
"""


def uploaded(folder: Path, hub: LocalHub, *options: str) -> str:
    """Run the upload in a process, because huggingface_hub reads the endpoint when imported."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": "hf_secret",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(folder.parent / "home"),
    }
    command = [sys.executable, "-c", CODE, str(folder), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def exported(tmp_path: Path) -> Path:
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_every_file_arrives_in_a_private_repository(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    with local_hub() as hub:
        assert hub.url in uploaded(folder, hub)
        assert hub.repositories == {"me/tiny": True}
        assert hub.files == {one.name: one.read_bytes() for one in folder.iterdir()}
        assert hub.tokens == {"Bearer hf_secret"}


def test_a_public_repository_is_made_only_when_asked_for(tmp_path: Path) -> None:
    with local_hub() as hub:
        uploaded(exported(tmp_path), hub, "public")
        assert hub.repositories == {"me/tiny": False}


def test_a_refusal_names_the_reason_and_how_to_repeat(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    with local_hub() as hub:
        hub.refuse = True
        said = uploaded(folder, hub)
    assert "403" in said
    assert f"hf upload me/tiny {folder}" in said
    assert "hf_secret" not in said


def test_a_hub_that_cannot_be_reached_is_no_traceback(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    with local_hub() as hub:
        pass
    assert "was not uploaded" in uploaded(folder, hub)
