"""One local step of several clients, as a function of tensors, and what a model must be for it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.dropout import KEY
from fl_lightning.core.guarded_term import IN_PARALLEL
from fl_lightning.core.mixed_precision import parameters_and_casts
from fl_lightning.core.network import FunctionalModel, class_name
from fl_lightning.core.oracle import BatchOracle, ForwardPass, Request, objective
from fl_lightning.core.randomness import generator_states, seeded_rng
from fl_lightning.core.substitution import substituted
from fl_lightning.core.term import States
from fl_lightning.errors import ModelError, TermError, first_sentence
from fl_lightning.executors.executor import Buffers, Executor
from fl_lightning.executors.program import Program

SharedArgs = dict[str, Any]
"""Arguments that all clients of a step share: `round_facts`, `server_states`, `coefficients` (see
`RoundInputs`), and `decay`. Where clients of several runs train together, the first three, but for
the layout, are among the facts of each client."""

INSTEAD = "train it with the sequential executor, without --compile"


def of_client(
    algorithm: Algorithm, client_facts: Mapping[str, Any], shared_args: SharedArgs
) -> tuple[Algorithm, dict[str, Any], Sequence[States]]:
    """The method with its coefficients, all facts, and the server's states, for one client."""
    facts = {**shared_args["round_facts"], **client_facts}
    coefficients, server_states = (
        facts.pop(name) if name in facts else shared_args[name]
        for name in ("coefficients", "server_states")
    )
    return algorithm.with_coefficients(coefficients), facts, server_states


class LocalStep:
    """A local step of several clients, eager or compiled.

    The steps are functions `(w, client_facts, states, buffers, received, x, y, shared_args)`, with
    a row for each client in all arguments but the last. They return the direction, the states, the
    buffers after the first evaluation, and what is observed there (see `Executor`). A loss alone
    counts as one in a step without gradients.

    The executor gives model, loss and autocast. Several clients may take a `batched` step together,
    under `vmap`.

    Attributes:
        direction: The eager step.
        descent: The eager step with SGD in it: returns the new weights instead of the direction.
            Takes the clients' learning rates, (clients,), before all else, and the 0-dim `decay`
            (weight decay) from `shared_args`.
        compiled_direction, compiled_descent: The same, compiled.
    """

    def __init__(self, executor: Executor, algorithm: Algorithm, batched: bool):
        self.executor, self.algorithm, self.batched = executor, algorithm, batched
        self.direction, self.descent = _for_each(self._direction), _for_each(self._descent)
        self.compiled_direction = Program(self.direction)
        self.compiled_descent = Program(self.descent)

    def _direction(
        self,
        w: Tensor,
        client_facts: dict[str, Any],
        states: list[States],
        buffers: Buffers,
        received: Buffers,
        x: Any,
        y: Any,
        shared_args: SharedArgs,
    ) -> tuple[Tensor, list[States], Buffers, Tensor]:
        executor, layout = self.executor, self.executor.layout
        dtype = None if get_proxy_mode() else executor.cast_dtype  # a compiler fuses the casts
        first, at_losses = list[tuple[Buffers, Tensor]](), list[tuple[Buffers, Tensor]]()

        def evaluate(w: Tensor, request: Request) -> Tensor:
            def value(parts: Sequence[Tensor]) -> tuple[Tensor, tuple[Buffers, Tensor]]:
                # inside grad, where BatchNorm may not write to what lies outside
                moved = {name: b if name == KEY else b.clone() for name, b in buffers.items()}
                n = len(layout.names)
                weights, casts = dict(zip(layout.names, parts[:n], strict=True)), parts[n:]
                network = FunctionalModel(executor.module, layout, received, weights, moved, casts)
                norms = full_batchnorm(executor.module) if self.batched else nullcontext()
                with executor.autocast(), norms:
                    b = ForwardPass(network, *request.batch(x, y), request.layers)
                    total, task = objective(b, (executor.task, *request.losses))
                return total, (moved, executor.observed(b, task))

            def value_of_casts(w: Tensor, dtype: torch.dtype) -> Any:
                return value(parameters_and_casts(w, layout, dtype))

            with blame_model():
                if request.loss_only:
                    loss, aside = value(layout.split(w))
                    at_losses.append(aside)
                    return loss
                if dtype:
                    g, (_, aside) = grad_and_value(value_of_casts, has_aux=True)(w, dtype)
                else:
                    parts, (_, aside) = grad_and_value(value, has_aux=True)(layout.split(w))
                    g = layout.flatten(parts)
            first.append(aside)
            return g

        algorithm, facts, server_states = of_client(self.algorithm, client_facts, shared_args)
        executor.announce(facts)
        g, states = algorithm.gradient(BatchOracle(evaluate), w, facts, states, server_states)
        after, observed = (first or at_losses or [(buffers, w.new_full((1,), torch.nan))])[0]
        return g, states, after, observed

    def _descent(self, lr: Tensor, w: Tensor, *rest: Any) -> tuple[Any, ...]:
        g, *others = self._direction(w, *rest)
        return w - lr * (g + rest[-1]["decay"] * w), *others


def weight_decay(optimizer: Optimizer) -> float | None:
    """The weight decay of plain SGD, as in `descent`; None of any other optimizer."""
    if type(optimizer) is not SGD or len(optimizer.param_groups) > 1:
        return None
    group = optimizer.param_groups[0]
    return None if group["momentum"] or group["maximize"] else float(group["weight_decay"])


def _for_each(one: Callable[..., Any]) -> Callable[..., Any]:
    """A function of several clients from that of one."""

    def each(*arguments: Any) -> Any:
        *rows, shared_args = arguments
        if len(rows[0]) > 1:
            return vmap(one, in_dims=(*[0] * len(rows), None), randomness="error")(*arguments)
        single = tree_map(lambda t: t[0], rows)
        given = dict(zip(map(id, tree_leaves(single)), tree_leaves(rows), strict=True))
        # return unchanged inputs as they are, so that the compiled graph does not copy them
        return tree_map(lambda t: given.get(id(t), t[None]), one(*single, shared_args))

    return each


def _draws(name: str) -> ModelError:
    return ModelError(
        f"{name} draws random numbers that parallel clients and --compile cannot repeat: use "
        f"torch.nn.functional.dropout for them, or {INSTEAD}"
    )


@contextmanager
def blame_model(name: str = "this model or its loss") -> Iterator[None]:
    """Turn PyTorch's errors about code that cannot run in parallel into a ModelError."""
    try:
        yield
    except (TermError, ModelError):
        raise
    except GuardOnDataDependentSymNode as error:
        raise ModelError(
            f"{name} branches on the value of a tensor, which cannot be compiled: "
            "train without --compile"
        ) from error
    except RuntimeError as error:
        if "randomness" in str(error):
            raise _draws(name) from error
        if not any(said in str(error) for said in IN_PARALLEL):
            raise
        raise ModelError(
            f"{name} cannot run for several clients in parallel ({first_sentence(error)}): "
            f"{INSTEAD}"
        ) from error


def try_in_parallel(executor: Executor, x: Any, y: Any, batched: bool) -> None:
    """Run the model's training pass and the loss on samples, under `vmap` if `batched`.

    Nothing changes.

    Raises:
        ModelError: If the model draws random numbers other than dropout's, or cannot run for
            several clients, or if the loss reads weights itself.
    """
    module, layout = executor.module, executor.layout
    buffers = {**dict(module.named_buffers()), **executor.dropout_key(0)}

    def one(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Any, y: Any) -> Tensor:
        moved = {name: b.clone() for name, b in buffers.items()}
        out = FunctionalModel(module, layout, buffers, weights, moved).forward(x)
        return executor.loss(out, y)

    given = tree_map(Tensor.detach, (dict(module.named_parameters()), buffers, x, y))
    training, name = module.training, class_name(module)
    module.train()
    try:
        with (
            seeded_rng(0, executor.device),
            refused_draws(executor.device, f"{name} or its loss"),
            blame_model(f"{name} or its loss"),
            substituted(batched=True),
            executor.autocast(),
            full_batchnorm(module),
        ):
            if not batched:
                value = one(*given)
            else:
                rows = tree_map(lambda t: t.expand(2, *t.shape), given)
                value = vmap(one, randomness="error")(*rows)
    finally:
        module.train(training)
    # the weights that the pass was given have no gradient, but the loss may read the module's own
    own = [p for p in module.parameters() if p.requires_grad]
    if value.requires_grad and any(
        g is not None for g in torch.autograd.grad(value.sum(), own, allow_unused=True)
    ):
        raise ModelError(
            f"the loss reads weights of {name} itself, of which parallel clients and --compile "
            f"have no gradient: let {name} return what it needs of them, or train with the "
            "sequential executor"
        )


@contextmanager
def refused_draws(
    device: torch.device, name: str = "this model, its loss or a term"
) -> Iterator[None]:
    """Raise a ModelError that names who draws, after a step that moved a global generator."""
    before = generator_states(device)
    yield
    if generator_states(device) != before:
        raise _draws(name)


@contextmanager
def full_batchnorm(module: nn.Module) -> Iterator[None]:
    """Give BatchNorm inputs of its own dtype: vmap requires it, and autocast leaves them bf16."""

    def convert(norm: nn.Module, args: Any, kwargs: Any) -> tuple[tuple[Tensor], dict[str, Any]]:
        x = next(iter((*args, *kwargs.values())))
        own = next(chain(norm.parameters(), norm.buffers()), x)
        return (x.to(own.dtype),), {}

    norms = [child for child in module.modules() if isinstance(child, _BatchNorm)]
    hooks = [norm.register_forward_pre_hook(convert, with_kwargs=True) for norm in norms]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
