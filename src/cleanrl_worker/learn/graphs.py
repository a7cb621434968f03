"""Updates recorded as CUDA graphs: hundreds of launches become one."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from cleanrl_worker.run.training import Run

WARM_UP = 3  # unrecorded calls: library initialisation cannot be recorded
Given = ParamSpec("Given")
Result = TypeVar("Result")


def captured(run: Run) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Return a decorator that compiles or records an update for `--compile` and `--cudagraphs`; no-op on a CPU.

    The update must accept tensors, modify tensors in place, and never read their values. Its next call may overwrite
    its result.
    """
    import torch

    def wrap(update: Callable[Given, Result]) -> Callable[Given, Result]:
        if getattr(run.args, "compile", False):
            torch._dynamo.config.suppress_errors = True  # uncompilable code runs uncompiled, and torch logs it
            update = torch.compile(update)
        if run.device.type == "cuda" and getattr(run.args, "cudagraphs", False):
            return cast(Callable[Given, Result], Recorder(update, run))
        return update

    return wrap


class Recorder:
    """A function that is recorded after a few calls and then replayed, once per shape of its arguments."""

    def __init__(self, update: Callable[..., Any], run: Any) -> None:
        self._update, self._run = update, run
        self._calls: dict[Any, int] = {}
        self._recordings: dict[Any, tuple[Any, tuple[Any, ...], Any]] = {}

    def __call__(self, *given: Any) -> Any:
        shapes = tuple(tensor.shape for tensor in given)
        if shapes not in self._recordings or not self._run.args.cudagraphs:
            self._calls[shapes] = calls = self._calls.get(shapes, 0) + 1
            if calls <= WARM_UP or not self._run.args.cudagraphs or not self._record(shapes, given):
                return self._update(*given)
        graph, inputs, result = self._recordings[shapes]
        for mine, tensor in zip(inputs, given, strict=True):
            if mine is not tensor:  # a replay reads the recorded call's tensors
                mine.copy_(tensor, non_blocking=True)
        graph.replay()
        return result

    def _record(self, shapes: Any, given: tuple[Any, ...]) -> bool:
        import torch

        graph, generator = torch.cuda.CUDAGraph(), torch.cuda.default_generators[torch.cuda.current_device()]
        untouched = generator.clone_state()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                result = self._update(*given)
        except RuntimeError as error:  # both torch's and CUDA's
            generator.graphsafe_set_state(untouched)  # the current state is tied to the failed recording
            self._run.args.cudagraphs = False  # earlier recordings use the old state
            message = f"updates run without CUDA graphs: one cannot be recorded ({str(error).splitlines()[0]})"
            self._run.tell("warning", {"message": message})
            return False
        self._recordings[shapes] = graph, given, result
        return True
