"""Models of transformers, by name or configuration, with the adapters of peft."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal

from torch import nn

from fl_lightning.core.constraints import PositiveInt
from fl_lightning.errors import UserError, first_sentence


def huggingface(
    architecture: str,
    lora: Mapping[str, Any] | None = None,
    *,
    task: Literal["tokens", "classes"] = "tokens",
    width: PositiveInt = 64,
    layers: PositiveInt = 2,
    heads: PositiveInt = 4,
    lora_rank: PositiveInt | None = None,
    lora_targets: tuple[str, ...] = (),
    vocabulary: int = 0,
    classes: int = 0,
) -> nn.Module:
    """A model of transformers (`pip install 'fl-lightning[lora]'`); with LoRA if a rank is given.

    Of a LoRA model the adapters train, and a classifier's new head; all other weights are frozen.

    Args:
        architecture: A type such as llama or gpt2, which gets random weights; or a model on the
            Hugging Face Hub or a folder, which has its own, but a new head if that is of other
            classes. In Python a configuration, too.
        lora: In Python the arguments of peft's `LoraConfig`, such as {"r": 8}.
        task: Predict the next token at every place, or the class of a text.
        width: Numbers that stand for a token, of a type.
        layers: Number of layers of a type.
        heads: Attention heads of a layer of a type.
        lora_rank: Rank of the adapters; none trains the whole model.
        lora_targets: Last parts of the names of the layers that get adapters, such as
            q_proj,v_proj; none is every linear layer but the last.
    """
    try:
        import transformers
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise UserError(
            "transformers and peft are not installed: pip install 'fl-lightning[lora]'"
        ) from error
    if lora_targets and lora_rank is None:
        raise UserError("lora_targets says nothing without lora_rank: give a rank, or leave it out")
    if lora is not None and lora_rank is not None:
        raise UserError("lora and lora_rank both give a rank: leave out one")
    if task == "classes" and not classes and isinstance(architecture, str):
        raise UserError("classes is 0: give their number")
    head = "CausalLM" if task == "tokens" else "SequenceClassification"
    auto = getattr(transformers, f"AutoModelFor{head}")
    own: dict[str, Any] = {"num_labels": classes} if task == "classes" and classes else {}
    types = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    try:
        if not isinstance(architecture, str):
            given = deepcopy(architecture)
            given.update(own)
            model = auto.from_config(given)
        elif architecture in types:
            config = types[architecture]
            sizes = _sizes(config, width, layers, heads, vocabulary)
            model = auto.from_config(config(**sizes, **own, use_cache=False))
        else:
            model = auto.from_pretrained(architecture, ignore_mismatched_sizes=bool(own), **own)
        if lora_rank is not None:
            lora = {"r": lora_rank, **_targets(model, lora_targets)}
        if lora is None:
            return model
        new = [] if task == "tokens" else _outside(model, model.named_parameters())
        model.config.use_cache = False
        adapted: nn.Module = get_peft_model(model, LoraConfig(**lora))
    except Exception as error:  # each model checks its sizes in its own way
        kind = architecture if isinstance(architecture, str) else type(architecture).__name__
        inner = str(error).rpartition("ValueError: ")[2]  # of what a configuration has wrapped
        reason = first_sentence(ValueError(inner))
        raise UserError(
            f"transformers or peft cannot make {kind!r} ({reason}): give a type such as llama, a "
            "folder, or a model on the Hub, sizes that fit, and targets among its layers"
        ) from error
    for name in new:
        adapted.get_parameter(f"base_model.model.{name}").requires_grad_(True)
    return adapted


def _sizes(config: Any, width: int, layers: int, heads: int, vocabulary: int) -> dict[str, Any]:
    """Arguments of a configuration, as it spells them."""
    sizes = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    }
    return {config.attribute_map.get(size, size): number for size, number in sizes.items()}


def _targets(model: Any, names: Sequence[str]) -> dict[str, Any]:
    """Peft's words for the layers of these names; for every linear layer but the head if none."""
    if names:
        return {"target_modules": [*names]}
    head = [name for name in _outside(model, model.named_modules()) if name]
    return {"target_modules": "all-linear", "exclude_modules": head}


def _outside(model: Any, named: Iterable[tuple[str, Any]]) -> list[str]:
    """The names that are not of the model's body."""
    return [name for name, _ in named if not f"{name}.".startswith(f"{model.base_model_prefix}.")]
