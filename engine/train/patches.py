"""The table of patches: every place where training changes an object of another library, and why.

| object and attribute | patch | reason |
|---|---|---|
| `accelerator.prepare_model` | `without_ddp` | captured graphs cannot use the hooks of DDP |
| `accelerator.prepare_model` | `keep_sharded` | a sharded model is where it belongs already |
| `accelerator.autocast_handler` | `keep_sharded` | cached casts would keep gathered weights |
| `model.hf_device_map` | `keep_sharded` | accelerate refuses 4-bit models that were on the host |
| `layer.quant_state` | `keep_quant_states` | a part of a 4-bit weight loses its constants |
| `layer.weight`, `layer.quant_storage` | `store_as_floats` | old FSDP cannot split integers |
| `accelerator.backward` | `poison_nonfinite` | a non-finite loss has to reach every rank |
| `model.zero_grad` | `zero_grad_of_trained` | the walk over all modules makes the device wait |
| `optimizer.step` | `guard_optimizer` | a refused update must not change weights or state |
| `optimizer.found_inf` | `refuse_update_if` | fused optimizers skip an update on the device by it |
| `optimizer.param_groups`, `optimizer.state` | `share_optimizer` | two optimizers work as one |
| `arguments._n_gpu` | `on_one_device` | a rank uses one device, however many are visible |
| `model.get_output_embeddings` | `head_shown_plain` | TRL refuses heads whose loss it computes |
| `schedule._last_lr` | `set_last_lr` | a restored schedule has to report its rate at once |
| `trainer.neftune_noise_alpha` | `without_own_noise` | graphs add the noise themselves |
| `module.forward` | `replace_forward` | fused kernels take the place of some layers |
| `model._has_unfinished_sequences` | `stoppable` | ranks that generate together stop together |
| `layer.training` | `keep_training` | a fused layer computes alike with and without dropout |
| `torch.cuda.is_current_stream_capturing` | `claim_capture` | rehearses a capture |
| `dynamo.recompile_limit` | `allow_shapes` | every length of a batch is a shape of its own |
| `dynamo.accumulated_recompile_limit` | `allow_shapes` | as above |
| `inductor.compile_threads` | `allow_shapes` | no compiler processes beside the engine |
| `torch.compile` | `compile_deferred` | the compiler need not be imported for every start |
| `ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]` | `sdpa_mask_by` | a mask of mere padding is slow |

A test asserts that no other module of `engine/train` sets an attribute of a foreign object.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from .profiler_spans import span


class UpdateHooks(Protocol):
    """The step hooks that the patches of backward pass and optimizer call."""

    def may_backward(self) -> bool:
        """Return whether the next backward pass may run; False if the step is being dropped."""

    def may_update(self) -> bool:
        """Return whether the optimizer may change the weights."""

    def gated(self) -> AbstractContextManager[None]:
        """Return a context in which the device skips the optimizer step if it must not be applied.

        The device compares loss and gradient norm with their limits, so the host need not wait.
        """


def without_ddp(accelerator: Any) -> None:
    """Let the accelerator prepare models without DDP around them.

    DDP would keep the autograd nodes in which gradients arrive. They belong to the stream that is
    current when they are made, and a backward pass that is captured may not reach another stream.
    """
    accelerator.prepare_model = functools.partial(accelerator.prepare_model, evaluation_mode=True)


def keep_sharded(accelerator: Any) -> None:
    """Let the accelerator prepare a sharded model without DDP, moves, and a cache of casts.

    The cache would keep a copy of every gathered weight in 16 bits until the end of the pass.
    """
    from accelerate.utils import AutocastKwargs  # deferred: a watched script may not have it

    prepare = accelerator.prepare_model

    @functools.wraps(prepare)
    def prepared(model: Any, **named: Any) -> Any:
        if getattr(model, "hf_device_map", None):
            model.hf_device_map = {"": accelerator.device}
        return prepare(model, **{**named, "device_placement": False, "evaluation_mode": True})

    accelerator.prepare_model = prepared
    accelerator.autocast_handler = AutocastKwargs(cache_enabled=False)


def keep_quant_states(model: Any, device: torch.device) -> None:
    """Let each 4-bit layer keep the constants of its weight, whole and on the device.

    bitsandbytes finds them there when the weight is a plain tensor, as gathered ones are.
    """
    for layer in model.modules():
        state = getattr(getattr(layer, "weight", None), "quant_state", None)
        if state is not None:
            state.to(device)
            layer.quant_state = state


def store_as_floats(model: Any) -> None:
    """Let the bytes of each 4-bit weight be stored as numbers of 16 bits; no bit changes.

    It is bitsandbytes' `quant_storage`, which FSDP before torch 2.13 needs, because it makes every
    part a parameter that may have a gradient.
    """
    for layer in model.modules():
        weight = layer._parameters.get("weight")
        if getattr(weight, "quant_state", None) is None or weight.numel() % 2:
            continue
        pairs = weight.detach().reshape(-1).view(torch.bfloat16).reshape(-1, 1)
        layer.weight = torch.nn.Parameter(pairs, requires_grad=False)
        layer.quant_storage = torch.bfloat16


def zero_grad_of_trained(model: Any, trained: Sequence[torch.nn.Parameter] | None = None) -> None:
    """Let `zero_grad` touch only trained parameters, without a walk over all modules.

    Args:
        model: the model.
        trained: its trained parameters; None takes those that require a gradient.
    """
    if trained is None:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def zero_grad(set_to_none: bool = True) -> None:
        for parameter in trained:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    model.zero_grad = zero_grad


def guard_optimizer(optimizer: Any, hooks: UpdateHooks) -> None:
    """Replace `optimizer.step`: in a refused or dropped step it changes no weight and no state."""
    step = optimizer.step

    @functools.wraps(step)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if hooks.may_update():
            with span("update"), hooks.gated():
                return step(*args, **kwargs)
        if optimizer.scaler is not None and optimizer.scaler._found_inf_per_device(
            optimizer.optimizer
        ):
            optimizer.scaler.update()
        return None

    optimizer.step = guarded


def poison_nonfinite(accelerator: Any, hooks: UpdateHooks, *, alone: bool = False) -> None:
    """Replace `accelerator.backward`: every gradient is NaN if the loss of the rank is not finite.

    The all-reduce carries the NaN to every rank. So all ranks come to the same verdict without a
    message, and no rank waits for its device to learn that a loss is finite.

    Args:
        accelerator: runs the backward passes.
        hooks: asked before each pass whether it may run; it is left out otherwise.
        alone: whether there is a single rank, which knows its loss, so that nothing is marked.
    """
    backward = accelerator.backward

    @functools.wraps(backward)
    def marked(loss: Tensor, **kwargs: Any) -> None:
        if not hooks.may_backward():
            return
        if not alone:
            loss = loss * torch.where(torch.isfinite(loss.detach()), 1.0, math.nan)
        with span("backward"):
            backward(loss, **kwargs)

    accelerator.backward = marked


@contextmanager
def refuse_update_if(optimizer: Any, held: Tensor) -> Iterator[None]:
    """Let steps of a fused optimizer change nothing while the tensor `held`, [] fp32, is 1."""
    optimizer.found_inf = held
    try:
        yield
    finally:
        del optimizer.found_inf


def share_optimizer(part: Any, groups: list[dict[str, Any]], state: Any) -> None:
    """Let an optimizer work on some groups of another one, with the state of that one."""
    part.param_groups = groups
    part.state = state


def on_one_device(arguments: Any) -> Any:
    """Return the arguments for a process that uses one device, however many it can see.

    Each rank has one device; by default transformers would spread a single process over all.
    """
    _ = arguments.device  # counts the visible devices, once
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


@contextmanager
def head_shown_plain(model: Any) -> Iterator[None]:
    """Within the block, let a model return its output head without the adapter on it.

    TRL refuses an adapter on the head, because its own loss would leave it out; fttui computes the
    loss of such a model with the whole head.
    """
    head = model.get_output_embeddings()
    model.get_output_embeddings = lambda: getattr(head, "base_layer", head)
    try:
        yield
    finally:
        del model.get_output_embeddings


@contextmanager
def stoppable(model: Any, stops: Callable[[], bool]) -> Iterator[None]:
    """Let a model that all ranks run together end a generation in the block on all of them.

    Args:
        model: the model below adapters and wrappers, which has `generate`.
        stops: called before each token on every rank, also on one whose own text has ended; all
            ranks get the same answer.
    """
    unfinished = model._has_unfinished_sequences
    model._has_unfinished_sequences = lambda *a, **k: unfinished(*a, **k) and not stops()
    try:
        yield
    finally:
        del model._has_unfinished_sequences


def set_last_lr(schedule: Any, lrs: list[float]) -> None:
    """Set the learning rates that a schedule reports until its next step."""
    schedule._last_lr = lrs


def without_own_noise(trainer: Any) -> None:
    """Keep the trainer from adding NEFTune noise, which graphs add themselves.

    The noise of the trainer would be drawn for rows as long as the static buffers.
    """
    trainer.neftune_noise_alpha = None


def replace_forward(module: Any, forward: Callable[..., Any]) -> None:
    """Let a module compute its outputs by the function `forward`."""
    module.forward = forward


def keep_training(layer: Any) -> None:
    """Set one layer to training mode, although the model around it is in evaluation mode."""
    layer.training = True


@contextmanager
def claim_capture() -> Iterator[None]:
    """Let `torch.cuda.is_current_stream_capturing` return True within the block."""
    cuda: Any = torch.cuda
    asked = cuda.is_current_stream_capturing
    cuda.is_current_stream_capturing = _yes
    try:
        yield
    finally:
        cuda.is_current_stream_capturing = asked


def _yes() -> bool:
    return True


def allow_shapes(count: int) -> None:
    """Let torch compile a function for this many shapes, without starting compiler processes."""
    from torch._dynamo import config as dynamo
    from torch._inductor import config as inductor

    dynamo.recompile_limit = max(dynamo.recompile_limit, count)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 4 * count)
    inductor.compile_threads = 1


@contextmanager
def compile_deferred() -> Iterator[None]:
    """Within the block, let functions decorated with `torch.compile` compile on their first call.

    `torch.compile` imports the whole compiler. bitsandbytes decorates functions with it while it
    is imported, and most runs never call one of them.
    """
    compile_now: Any = torch.compile

    def compile_later(function: Any = None, **options: Any) -> Any:
        if function is None:
            return functools.partial(compile_later, **options)
        compiled: list[Any] = []

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if not compiled:
                compiled.append(compile_now(function, **options))
            return compiled[0](*arguments, **keywords)

        return call

    torch.compile = compile_later  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = compile_now


@contextmanager
def sdpa_mask_by(function: Callable[..., Tensor | None]) -> Iterator[None]:
    """Within the block, let transformers make the masks of SDPA attention by `function`."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    functions: Any = ALL_MASK_ATTENTION_FUNCTIONS
    functions["sdpa"] = function
    try:
        yield
    finally:
        del functions["sdpa"]
