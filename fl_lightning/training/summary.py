"""What a run prints: the summary before the first round, and the results after the last."""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from shlex import quote
from shutil import disk_usage
from statistics import fmean

import torch
from rich.filesize import decimal
from torch import nn
from torch.optim import SGD

from fl_lightning.callbacks.display import score_text
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.draws import Draw
from fl_lightning.core.prediction import from_logits
from fl_lightning.core.term import Term, WrappedTerm
from fl_lightning.core.weighting import by_size, in_words
from fl_lightning.federation.federation import Federation
from fl_lightning.federation.sampling import largest_cohort
from fl_lightning.federation.trials import with_single_batch
from fl_lightning.runs.options import Options
from fl_lightning.runs.run import TAIL_LENGTH, Run
from fl_lightning.runs.scalars import Scalars
from fl_lightning.training.parts import RunData

SMALL = 50_000
"""Parameters below which stacked clients train faster on a CPU (benchmarks/small_models.py)."""


def summary(o: Options, names: Mapping[str, str], data: RunData, federation: Federation) -> str:
    """The data, the clients and their weights, the model and its costs, and the partition.

    `effects` come after it.
    """
    train, test = data.train, data.test
    used = int(data.whole.indices.bincount().count_nonzero())
    name, cost, w = names["algorithm"], federation.cost, federation.w
    up, down, kept = (n / w.numel() for n in (cost.uplink, cost.downlink, cost.client_state))
    further = cost.forward_passes
    passes = f" and {_count(further, 'forward pass', 'es')}" if further else ""
    threads = f" of {_count(torch.get_num_threads(), 'thread')}" if w.device.type == "cpu" else ""
    ranks = _count(federation.fabric.world_size, "rank")
    manner = federation.local_training.executor.manner
    source = " of the clients" if o.validation_from == "clients" else " of the test set"
    source = source if o.validation else ""  # else they were given
    held_out = f"{len(data.validation or ()):,} samples{source} are held out for validation"
    cohort = largest_cohort(federation.sampler, federation.clients.num_clients)
    sized = hasattr(federation.sampler, "largest")
    part = f"{100 * o.participation:.3g}% a round" if sized else f"chosen by {o.sampling}"
    visits = cohort * (federation.rounds - federation.round)
    disk = federation.store.most_disk_bytes(visits, o.keep_checkpoints)
    free = disk_usage(federation.store.folder.parent).free if disk else 0
    states = f"client states: at most {decimal(disk)} on disk, where {decimal(free)} are free"
    return "\n".join(
        [
            f"{name} on {names['data']}: {used:,} training and {len(test):,} test samples",
            f"{federation.clients.num_clients:,} clients, {part}, "
            f"{in_words(federation.algorithm.weight)}; {_count(o.rounds, 'round')}, seed {o.seed}",
            f"{names['model']}: {w.numel():,} parameters, {ranks}{threads} on {w.device.type}"
            f"{manner and f', {manner}'}",
            f"per client: upload {up:.3g}x, download {down:.3g}x, state {kept:.3g}x the model"
            f"{'' if cost.exact else ' at most (could not be counted)'}; "
            f"{_count(cost.gradients, 'gradient')}{passes} a step",
            *([] if data.validation is None else [held_out]),
            *([states] if disk > min(1e9, free) else []),
            data.partition.describe(train.labels, train.classes),
        ]
    )


def _count(number: int, thing: str, plural: str = "s") -> str:
    return f"{number:,} {thing}{plural if number != 1 else ''}"


def effects(name: str, o: Options, federation: Federation, advise: bool) -> Iterator[str]:
    """Effects of the options, with each other and these data, that a user may not expect.

    `advise` says whether nothing scores or writes clients' own models yet.
    """
    algorithm, clients = federation.algorithm, federation.clients
    total = clients.num_clients
    for state in federation.local_training.rehearsal.idle:
        yield f"{state} stays 0: no hook assigns it in the first or the last round"
    if optimizer := _local_optimizer(algorithm, o):
        yield f"{name} has {optimizer}"
    cohort = largest_cohort(federation.sampler, total)
    if o.sampling == "weighted" and algorithm.weight is by_size and cohort < total:
        yield f"{name} weighs clients by their samples, as --sampling does: they count twice"
    terms = [term.inner if isinstance(term, WrappedTerm) else term for term in algorithm.terms]
    makes_models = any(type(term).personal is not Term.personal for term in terms)
    personal = algorithm.predict is not from_logits or algorithm.trains == "body"
    if advise and (personal or makes_models):
        yield f"{name} trains clients' own models: --finetune-epochs 1,5 scores them at the end"
    fixed = o.sampling != "bernoulli" and hasattr(federation.sampler, "largest")
    if fixed and _differs(cohort / total, o.participation):
        yield f"--participation {o.participation:g} of {total:,} clients is {cohort:,} a round"
    passes = (clients.sizes / o.batch_size).ceil()
    if o.local_steps is None and not isinstance(o.local_epochs, Draw):
        epochs = ((o.local_epochs * passes).round().clamp(min=1) / passes).mean().item()
        if _differs(epochs, o.local_epochs):
            yield f"--local-epochs {o.local_epochs:g} is {epochs:.2g} on average, in whole steps"
    training = federation.local_training
    facts, visit = training.round_facts(cohort), training.rates.average_visit
    for_rounds = (facts | {"round": k} | visit(k) for k in (0, o.rounds - 1))
    yield from (
        f"{name}: {line}" for line in federation.server.scheduled.summary_lines(*for_rounds)
    )
    precision, device = federation.fabric.strategy.precision.precision, federation.w.device
    if precision == "bf16-mixed" and device.type == "cpu" and not _computes_bf16():
        yield "this processor computes bf16 in software: --precision 32-true is many times faster"
    if not clients.single_batches:
        few = len(with_single_batch(clients))
        yield f"{few:,} of {total:,} clients skip a last batch of one sample: BatchNorm needs two"
    small = federation.w.numel() < SMALL and device.type == "cpu" and not o.compile
    alike = bool(passes.min() == passes.max())  # clients of unequal lengths wait for each other
    if small and alike and o.executor == "auto" and cohort >= 5 * federation.fabric.world_size:
        yield "--executor stacked trains so small a model about twice as fast"
    if o.compile and clients.sizes.max() < o.batch_size:
        yield f"--compile has no effect: no client has a full batch of {o.batch_size:,} samples"


def results(run: Run, monitors: Sequence[str], upwards: bool, sent: bool, advise: bool) -> str:
    """The lines after the last round: scores and files.

    Of the evaluations' scores, `monitors`, the first is shown and the last chooses the best, which
    is its highest value if `upwards`. If clients have not `sent`, the global model is untrained.
    `advise` is as in `effects`.
    """
    recorded, lines = {tag: of for tag, of in run.scalars.items() if of}, list[str]()
    personal = _personal(recorded) or _own(recorded)
    if not sent:
        again = f"--run-dir {quote(str(run.path))} --resume --finetune-epochs 1,5"
        advice = f"to score clients' personal models: {again}" if advise else ""
        lines = ["clients send nothing: the global model is untrained", personal or advice]
    elif scores := recorded.get(monitors[0]) if monitors else None:
        chosen_by = recorded[monitors[-1]]
        both = [k for k in scores if k in chosen_by]
        rounds = [k for k in both if not isnan(chosen_by[k])] or both  # as best.pt is chosen
        best = (max if upwards else min)(rounds, key=chosen_by.__getitem__)
        lines = [*_scores(monitors[0], scores, best, len(monitors) > 1), personal]
    lines += [f"curves:  tensorboard --logdir {quote(str(run.path))}"]
    lines += [f"scalars: {run.path / 'metrics.csv'}"]
    lines += [f"model:   {run.path / 'model.pt'}"] if sent else []
    return "\n".join(filter(None, lines))


def _scores(tag: str, scores: Mapping[int, float], best: int, validated: bool) -> list[str]:
    """The last score, the mean of the last ones, and that of the best round."""
    tail = [*scores.values()][-TAIL_LENGTH:]
    last, mean = score_text(tag, tail[-1]), score_text(tag, fmean(tail))
    part, _, name = tag.rpartition("/")
    of_several = f"; mean of the last {len(tail)} evaluations {mean}" if len(tail) > 1 else ""
    chosen = ", chosen on validation" if validated else ""
    return [
        f"{part} {name} {last}{of_several}".lstrip(),
        f"best:    {score_text(tag, scores[best])} in round {best}{chosen}",
    ]


def _personal(recorded: Scalars) -> str:
    """The score of the clients' personal models, if there is one."""
    scores, name = list[str](), ""
    for tag in (tag for tag in recorded if re.match("personal/(?!std_)", tag)):
        name, _, epochs = tag.partition("/")[2].rpartition("_")
        spread = _spread(recorded, name, tag, f"personal/std_{epochs}")
        scores.append(f"{spread} after {epochs}")
    of = "" if name == "accuracy" else f" {name},"
    return f"personal models,{of} mean ± std: {', '.join(scores)} epochs" if scores else ""


def _own(recorded: Scalars) -> str:
    """The last score of the callback `personal_scores`, if there is one."""
    for tag in recorded:
        if tag.startswith("own/") and (deviation := f"{tag}_std") in recorded:
            name = tag.removeprefix("own/")
            return f"own models, {name}, mean ± std: {_spread(recorded, name, tag, deviation)}"
    return ""


def _spread(recorded: Scalars, name: str, *tags: str) -> str:
    """The last mean and standard deviation of a score."""
    digits = ".2%" if name == "accuracy" else ".4g"
    return " ± ".join(f"{[*recorded[tag].values()][-1]:{digits}}" for tag in tags)


def _differs(actual: float, asked: float) -> bool:
    """Whether rounding to whole clients or steps changes a number by more than a tenth."""
    return abs(actual - asked) > 0.1 * asked


def _local_optimizer(algorithm: Algorithm, o: Options) -> str:
    """The local optimizer in a few words, if it is not that of the options."""
    optimizer = algorithm.local([nn.Parameter(torch.zeros(1))])
    group = optimizer.param_groups[0]
    given = [group.get(name) for name in ("lr", "momentum", "weight_decay")]
    if type(optimizer) is SGD and given == [o.lr_of_round(0, o.rounds), o.momentum, o.weight_decay]:
        return ""
    kind = type(getattr(optimizer, "inner", optimizer)).__name__  # not what steps it by parts
    return f"a local {kind} of learning rate {group['lr']:g}"


def _computes_bf16() -> bool:
    """Whether this processor computes bf16 itself; software is many times slower than float32."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
