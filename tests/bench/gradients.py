"""Which gradients are right: graphs and the ordinary path against fp32, on one batch.

    python -m tests.bench.gradients [--shape 1b] [--length 512] [--device cuda]

Prints the distance of each from the gradient of the same weights computed in fp32 throughout,
relative to its norm. Then that recomputed activations see the forward pass's dropout: with it, the
gradients with and without checkpointing must agree as well as they do without dropout.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import AutocastKwargs
from torch import Tensor

from fttui.engine.config.load import parse_resolved
from fttui.engine.losses.cross_entropy import selected_cross_entropy
from fttui.engine.model.hidden import backbone_of, lm_head_of
from fttui.engine.model.load import equip
from fttui.engine.train.cuda_graphs.graph_forward import GraphForward
from fttui.engine.train.cuda_graphs.static_forward import StaticForward
from tests.support.shapes import random_llama
from tests.support.tiny import byte_tokenizer

DROPOUT = 0.05


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="1b")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    batch = make_batch(options)
    accuracy(options, batch)
    replayed(options, batch)


def make_batch(options: argparse.Namespace) -> dict[str, Tensor]:
    """Random tokens, the first eighth without a label."""
    ids = torch.randint(4, 250, (1, options.length), generator=torch.Generator().manual_seed(3))
    labels = ids.clone()
    labels[:, : options.length // 8] = -100
    mask = torch.ones_like(ids)
    batch = {"input_ids": ids, "labels": labels, "attention_mask": mask}
    return {name: value.to(options.device) for name, value in batch.items()}


def model_of(options: argparse.Namespace, *, checkpointing: bool, dropout: float) -> Any:
    """The same adapted model every time, with adapters that have learned something."""
    device = torch.device(options.device)
    config = parse_resolved(
        f"""
name: gradients
task: sft
model: {{id: random, quantize: nf4}}
adapter: {{dropout: {dropout}}}
data: {{train: none, max_length: {options.length}}}
train: {{steps: 1, activation_checkpointing: {str(checkpointing).lower()}}}
"""
    )
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    tokenizer = byte_tokenizer()
    base = random_llama(options.shape, tokenizer, device, nf4=True, dtype=dtype)
    model = equip(base, tokenizer, config, device, lambda *_: None).model.train()
    generator = torch.Generator(device).manual_seed(5)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            values = torch.randn(parameter.shape, generator=generator, device=device)
            parameter.data.copy_(values * 0.02)
    return model


def flat(gradients: Any) -> Tensor:
    """One fp32 vector on the host."""
    return torch.cat([g.detach().float().flatten().cpu() for g in gradients])


def trained(model: Any) -> list[Any]:
    """The parameters that gradients are taken by."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def ordinary(model: Any, batch: dict[str, Tensor], *, mixed: bool = True) -> Tensor:
    """The gradient of the token loss by plain autograd."""
    on_cuda = batch["input_ids"].is_cuda
    context: Any = (
        torch.autocast("cuda", torch.bfloat16) if mixed and on_cuda else contextlib.nullcontext()
    )
    with context:
        hidden = backbone_of(model)(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False
        )[0]
        loss, count = selected_cross_entropy(hidden, batch["labels"], lm_head_of(model))
    return flat(torch.autograd.grad(loss / count, trained(model)))


def fast(model: Any, batch: dict[str, Tensor], *, capture: bool, again: bool = False) -> Tensor:
    """The same on static shapes; `again` replays a second time from the same random numbers."""
    device = batch["input_ids"].device
    accelerator = Accelerator(mixed_precision="bf16" if device.type == "cuda" else "no")
    no_cache = AutocastKwargs(enabled=True, cache_enabled=False)
    path = GraphForward(
        StaticForward(model, functools.partial(accelerator.autocast, no_cache)), device,
        longest=batch["input_ids"].shape[1], rows=1, pad_id=0,
        capture=capture and device.type == "cuda", log=lambda level, line: print(level, line),
    )  # fmt: skip
    count = (batch["labels"][:, 1:] != -100).sum()
    for _ in range(1 + again):
        model.zero_grad()
        torch.manual_seed(11)
        (path(batch, "ce")["ce"] / count).backward()
    found = flat(parameter.grad for parameter in trained(model))
    path.release()
    return found


def reference(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """The gradient with every weight and every sum in fp32."""
    import bitsandbytes as bnb

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, bnb.nn.Linear4bit):
                weight = bnb.functional.dequantize_4bit(child.weight.data, child.weight.quant_state)
                linear = torch.nn.Linear(
                    child.in_features, child.out_features, bias=False, device="meta"
                )
                linear.weight = torch.nn.Parameter(weight.float(), requires_grad=False)
                setattr(module, name, linear)
    model.float()
    return ordinary(model, batch, mixed=False)


def distance(found: Tensor, right: Tensor) -> float:
    """Norm of the difference over the norm of what is right."""
    return float((found - right).double().norm() / right.double().norm())


def accuracy(options: argparse.Namespace, batch: dict[str, Tensor]) -> None:
    """Every way of computing the gradient against fp32."""
    found: dict[str, Tensor] = {}
    for checkpointing in (True, False):
        model = model_of(options, checkpointing=checkpointing, dropout=0.0)
        kind = "checkpointed" if checkpointing else "kept"
        found[f"ordinary, activations {kind}"] = ordinary(model, batch)
        found[f"static shapes, activations {kind}"] = fast(model, batch, capture=False)
        found[f"CUDA graphs, activations {kind}"] = fast(model, batch, capture=True, again=True)
    right = reference(model, batch)
    print(f"gradient norm in fp32: {float(right.norm()):.6f}")
    for name, gradient in found.items():
        others = distance(gradient, next(iter(found.values())))
        print(f"{name:44} from fp32 {distance(gradient, right):.5f}   from ordinary {others:.5f}",
              flush=True)  # fmt: skip


def replayed(options: argparse.Namespace, batch: dict[str, Tensor]) -> None:
    """Dropout is the same when activations are computed again."""
    gradients: dict[tuple[bool, bool], Tensor] = {}
    for checkpointing in (True, False):
        model = model_of(options, checkpointing=checkpointing, dropout=DROPOUT)
        gradients[checkpointing, False] = fast(model, batch, capture=False)
        gradients[checkpointing, True] = fast(model, batch, capture=True)
        twice = fast(model, batch, capture=True, again=True)
        apart = distance(twice, gradients[checkpointing, True])
        print(f"dropout, checkpointing {checkpointing!s:5}: a second replay differs by {apart:.1e}")
    start = gradients[False, False]
    for (checkpointing, capture), gradient in gradients.items():
        print(f"dropout, checkpointing {checkpointing!s:5}, graphs {capture!s:5}: from neither "
              f"{distance(gradient, start):.1e}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
