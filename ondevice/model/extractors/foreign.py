"""Networks from elsewhere, by name; nothing is imported before one is built.

    timm:NAME, torchvision:NAME      of those packages (`pip install 'fedss-mobile[zoo]'`), without their classifier
    package.module:function          a function, or class, of an installed package that gives an nn.Module
    path/to/file.py:function         the same of a file
    object:CLASS                     a module that was handed to `fedss.export`; known to that process alone

A builder takes the keyword arguments of the spec, and the spec itself if it has a parameter of that name.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ondevice.contract.vocabulary import StepSpec
from ondevice.model.named_code import UnusableCode, check_code_name, named_code, nearest

if TYPE_CHECKING:
    from torch import nn

PACKAGES = ("timm", "torchvision")
OBJECT = "object"
FORMS = "timm:NAME, torchvision:NAME, package.module:function or path/to/file.py:function"

GIVEN: dict[str, nn.Module] = {}
"""Modules that were handed over as objects, by the name that a spec has for them."""


class UnusableModel(UnusableCode):
    """A network that cannot be an extractor as it is; the message says why and what to do."""


def check_name(name: str, ours: Sequence[str]) -> None:
    """ValueError for what cannot be the name of a network, as far as can be told without importing any code."""
    source, colon, _ = name.rpartition(":")
    if not colon:
        if name not in ours:
            near = nearest(name, ours)
            raise ValueError(
                f"architecture is {name!r}; expected one of {', '.join(ours)}{near}, or another's network: {FORMS}"
            )
        return
    check_code_name("architecture", name, FORMS)
    if source in PACKAGES:
        if importlib.util.find_spec(source) is None:
            raise ValueError(
                f"architecture is {name!r}, but {source} is not installed: pip install 'fedss-mobile[zoo]'"
            )
    elif source == OBJECT and name not in GIVEN:
        raise ValueError(
            f"architecture is {name!r}: a module that was handed over as an object, in another process; "
            f"to build it anew it needs a name: {FORMS}"
        )


def code_of_strangers(spec: StepSpec) -> list[str]:
    """What a step imports that is neither ours nor an installed package's that we know: network, loss, by name."""
    names = dict.fromkeys((spec.architecture, spec.objective))
    return [name for name in names if ":" in name and name.rpartition(":")[0] not in (*PACKAGES, OBJECT)]


def build_foreign(spec: StepSpec) -> nn.Module:
    """What the builder of that name gives.  Raises UnusableModel, which says what to do instead."""
    source, _, attribute = spec.architecture.rpartition(":")
    arguments = dict(spec.architecture_arguments)
    if source == OBJECT:
        import copy

        return copy.deepcopy(GIVEN[spec.architecture])
    if source == "timm":
        return _built(_timm_network, spec, {"name": attribute, **arguments})
    if source == "torchvision":
        return _built(_torchvision_network, spec, {"name": attribute, **arguments})
    return _built(named_code("architecture", spec.architecture, FORMS), spec, arguments)


def _built(build: Callable[..., Any], spec: StepSpec, arguments: dict[str, Any]) -> nn.Module:
    from torch import nn

    with suppress(TypeError, ValueError):
        if "spec" in inspect.signature(build).parameters:
            arguments = {"spec": spec, **arguments}
    try:
        model = build(**arguments)
    except TypeError as error:
        raise UnusableModel(
            f"{spec.architecture} could not be built with the arguments {arguments}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise UnusableModel(f"{spec.architecture} gives a {type(model).__name__}; expected a torch.nn.Module")
    return model


def _timm_network(spec: StepSpec, name: str, **arguments: Any) -> Any:
    declare_torchvision_operators()
    timm: Any = importlib.import_module("timm")
    if not timm.is_model(name):
        raise UnusableModel(f"timm has no network {name!r}{nearest(name, timm.list_models())}")
    return timm.create_model(name, **{"num_classes": 0, "in_chans": spec.image_shape[0], **arguments})


def trained_pixels(source: str, name: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and deviation of the pixels that the package's weights were trained on; None where it does not say."""
    if source == "torchvision":
        return (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    if source != "timm":
        return None
    declare_torchvision_operators()
    trained = importlib.import_module("timm").get_pretrained_cfg(name)
    return None if trained is None else (tuple(trained.mean), tuple(trained.std))


def give(model: nn.Module) -> str:
    """The name that this process has for a module from now on."""
    name = f"{OBJECT}:{type(model).__module__}.{type(model).__qualname__}"
    GIVEN[name] = model
    return name


_WITHOUT_AUXILIARY_HEADS = {
    "googlenet": {"aux_logits": False, "init_weights": True, "transform_input": False},
    "inception_v3": {"aux_logits": False, "init_weights": True, "transform_input": False},
}


def _torchvision_network(spec: StepSpec, name: str, **arguments: Any) -> Any:
    declare_torchvision_operators()
    models: Any = importlib.import_module("torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        raise UnusableModel(f"torchvision has no network {name!r}{nearest(name, known)}")
    if spec.image_shape[0] != 3:
        raise UnusableModel(
            f"torchvision's networks take 3 channels, and the images have {spec.image_shape[0]}; timm's take any"
        )
    model = models.get_model(name, **{**_WITHOUT_AUXILIARY_HEADS.get(name, {}), **arguments})
    _drop_classifier(model)
    return model


def _drop_classifier(model: nn.Module) -> None:
    """The last fully connected layer; where there is none, all of what is called `classifier`."""
    from torch import nn

    layers = [path for path, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    path = layers[-1] if layers else "classifier"
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, nn.Identity())


def declare_torchvision_operators() -> None:
    """torchvision describes operators of its compiled part on import, which fails where that part does not load (beside a
    torch for processors alone, say).  No network that we train uses them: their declarations are enough."""
    import torch

    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _DECLARED.append(library)


_DECLARED: list[object] = []
"""A library that is let go takes its operators along."""
