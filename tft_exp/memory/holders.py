"""Who still holds a tensor: the shortest chain of references from a variable, an attribute or a module down to it.

The garbage collector's referrers are followed upwards from the tensor. A running function's variables are no objects that
the collector knows, so they are read from the stack beforehand.
"""

from __future__ import annotations

import gc
import inspect
import sys
import types
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor, nn

# A hook's closure lies some ten references below the variable that leads to it.
MOST_STEPS = 24
MOST_NAMED = 3
# The search's own frames, which hold what they search for.
OURS = {__file__, str(Path(__file__).with_name("audit.py"))}


def holders_of(tensors: list[Tensor]) -> list[str]:
    """The nearest holders of some tensors, at most three, each as a chain such as
    `local 'old' in train (trainer.py:104) -> AdamW.state[parameter]['exp_avg']`; empty where nothing in Python leads to them.
    """
    largest = max((tensor.nbytes for tensor in tensors), default=0)
    tensors = [tensor for tensor in tensors if tensor.nbytes * 2 >= largest]  # a step count names nobody
    variables = _variables()
    chains, rooted = _climb(tensors, variables)
    if not rooted:
        # The holder may be older than the run, and set aside with the libraries, among many more objects to go through.
        gc.unfreeze()
        chains, _ = _climb(tensors, variables)
    named = [variables.get(id(chain[0]), "") + _describe(chain) for chain in chains]
    return list(dict.fromkeys(named))[:MOST_NAMED]


def _climb(tensors: list[Tensor], variables: dict[int, str]) -> tuple[list[list[Any]], bool]:
    """The shortest chains from something that is a root down to the tensors, and true; without a root, as in a cycle that is
    garbage, chains from as far up as there is anything, and false."""
    below: dict[int, Any] = dict.fromkeys(map(id, tensors))  # an object's id -> the object that it holds
    layer: list[Any] = tensors
    ours = {id(below), id(tensors), id(variables)}
    for _ in range(MOST_STEPS):
        tops = [member for member in layer if id(member) in variables or _is_root(member)]
        if tops:
            return [_down_from(top, below) for top in tops], True
        found = gc.get_referrers(*layer)
        in_layer = {id(member) for member in layer}
        ours |= {id(layer), id(found), id(tops)}
        upper = []
        for holder in found:
            if id(holder) in below or id(holder) in ours or _is_passing(holder):
                continue
            held = next((member for member in gc.get_referents(holder) if id(member) in in_layer), None)
            if held is not None:
                below[id(holder)] = held
                upper.append(holder)
        if not upper:
            break
        layer = upper
    return [_down_from(top, below) for top in layer if below[id(top)] is not None], False


def _variables() -> dict[int, str]:
    """The objects that running functions' variables name, by id: `local 'x' in f (file.py:12) -> `."""
    found: dict[int, str] = {}
    for top in sys._current_frames().values():
        frame: types.FrameType | None = top
        while frame is not None:
            if frame.f_code.co_filename not in OURS and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
                for name, value in _locals_of(frame):
                    found.setdefault(id(value), f"local {name!r} in {_place(frame)} -> ")
            frame = frame.f_back
    return found


def _locals_of(frame: types.FrameType) -> list[tuple[str, Any]]:
    variables = frame.f_locals
    pairs = list(variables.items())
    # Python before 3.13 keeps this picture of the variables with the frame, and would hold with it what they held.
    if isinstance(variables, dict):
        variables.clear()
    return pairs


def _down_from(top: Any, below: dict[int, Any]) -> list[Any]:
    chain = [top]
    while below[id(chain[-1])] is not None:
        chain.append(below[id(chain[-1])])
    return chain


def _is_passing(holder: Any) -> bool:
    """Frames and iterators of the search itself, and what only walks over a holder."""
    if isinstance(holder, types.FrameType):
        return holder.f_code.co_filename in OURS
    if isinstance(holder, types.GeneratorType):
        return holder.gi_code.co_filename in OURS
    return type(holder).__name__.endswith("iterator")


def _is_root(holder: Any) -> bool:
    if isinstance(holder, types.GeneratorType | types.CoroutineType | types.ModuleType | type | nn.Module):
        return True
    return isinstance(holder, dict) and "__builtins__" in holder


def _describe(chain: Sequence[Any]) -> str:
    """The chain in words, each step by the name under which it is held."""
    # A traceback only stands between an exception and the frame whose variables it keeps.
    chain = [member for member in chain if not isinstance(member, types.TracebackType)]
    words = _name_of(chain[0])
    for holder, held in pairwise(chain):
        words += _step(holder, held, chain)
        if not isinstance(held, dict | list | tuple | set | types.CellType | Tensor):
            words += f" -> {_name_of(held)}"
    return words


def _name_of(value: Any) -> str:
    if isinstance(value, types.FrameType):
        return f"frame of {_place(value)}"
    if isinstance(value, types.GeneratorType):
        return f"suspended generator {_place(value.gi_frame)}" if value.gi_frame is not None else f"generator {value.__name__}"
    if isinstance(value, types.MethodType):
        return f"bound method {value.__func__.__name__}"
    if isinstance(value, types.FunctionType):
        return f"function {value.__name__}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, type):
        return f"class {value.__name__}"
    if isinstance(value, dict) and "__builtins__" in value:
        return f"module {value.get('__name__')}"
    return type(value).__name__


def _place(frame: types.FrameType) -> str:
    return f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"


def _step(holder: Any, held: Any, chain: Sequence[Any]) -> str:
    """How `holder` holds `held`."""
    frame = holder if isinstance(holder, types.FrameType) else getattr(holder, "gi_frame", None)
    if isinstance(frame, types.FrameType):
        name = next((name for name, value in _locals_of(frame) if value is held), None)
        return ", its stack" if name is None else f", local {name!r}"
    if isinstance(holder, types.FunctionType):
        cells = dict(zip(map(id, holder.__closure__ or ()), holder.__code__.co_freevars, strict=False))
        name = next((cells[id(member)] for member in chain if id(member) in cells), None)
        return "" if name is None else f", closure variable {name!r}"
    if isinstance(holder, types.MethodType):
        return ".__self__"
    if isinstance(holder, BaseException):
        return ".__traceback__" if isinstance(held, types.FrameType) else f".{_attribute(holder, held)}"
    if isinstance(holder, dict):
        key = next((key for key, value in holder.items() if value is held), None)
        is_attributes = any(getattr(member, "__dict__", None) is holder for member in chain)
        return f".{key}" if is_attributes or "__builtins__" in holder else f"[{_key(key)}]"
    if isinstance(holder, list):
        return f"[{next((index for index, value in enumerate(holder) if value is held), '?')}]"
    if isinstance(holder, tuple | types.CellType) or held is getattr(holder, "__dict__", None):
        return ""
    return f".{_attribute(holder, held)}"


def _key(key: Any) -> str:
    return "parameter" if isinstance(key, Tensor) else repr(key) if isinstance(key, str | int) else type(key).__name__


def _attribute(holder: Any, held: Any) -> str:
    """The attribute by which an object holds another; some of a tensor's are in no __dict__."""
    return next(_attributes(holder, held), "?")


def _attributes(holder: Any, held: Any) -> Iterator[str]:
    yield from (name for name, value in getattr(holder, "__dict__", {}).items() if value is held)
    yield from (name for name in ("_post_accumulate_grad_hooks", "_backward_hooks", "grad") if getattr(holder, name, None) is held)
