"""Events and rows of a run."""

from cleanrl_worker.telemetry.emitter import LifecycleEmitter as LifecycleEmitter
from cleanrl_worker.telemetry.emitter import MetricsRelay as MetricsRelay
