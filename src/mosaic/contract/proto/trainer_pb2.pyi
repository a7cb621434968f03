from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATE_UNSPECIFIED: _ClassVar[RunState]
    INIT: _ClassVar[RunState]
    HANDSHAKE: _ClassVar[RunState]
    READY: _ClassVar[RunState]
    EXECUTING: _ClassVar[RunState]
    PAUSED: _ClassVar[RunState]
    COMPLETED: _ClassVar[RunState]
    FAILED: _ClassVar[RunState]
    CANCELLED: _ClassVar[RunState]
    LOST: _ClassVar[RunState]
    BROKEN: _ClassVar[RunState]
RUN_STATE_UNSPECIFIED: RunState
INIT: RunState
HANDSHAKE: RunState
READY: RunState
EXECUTING: RunState
PAUSED: RunState
COMPLETED: RunState
FAILED: RunState
CANCELLED: RunState
LOST: RunState
BROKEN: RunState

class SubmitRunRequest(_message.Message):
    __slots__ = ("payload", "priority", "external", "run_id")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    priority: int
    external: bool
    run_id: str
    def __init__(self, payload: _Optional[bytes] = ..., priority: _Optional[int] = ..., external: _Optional[bool] = ..., run_id: _Optional[str] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class CancelRunRequest(_message.Message):
    __slots__ = ("run_id", "grace_seconds")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    grace_seconds: float
    def __init__(self, run_id: _Optional[str] = ..., grace_seconds: _Optional[float] = ...) -> None: ...

class DeleteRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RebuildRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RebuildResponse(_message.Message):
    __slots__ = ("rebuilt", "skipped", "known")
    class SkippedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REBUILT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    rebuilt: _containers.RepeatedScalarFieldContainer[str]
    skipped: _containers.ScalarMap[str, str]
    known: int
    def __init__(self, rebuilt: _Optional[_Iterable[str]] = ..., skipped: _Optional[_Mapping[str, str]] = ..., known: _Optional[int] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("states", "algo", "env_id", "mode", "text", "page_size", "page", "curve_points", "group")
    STATES_FIELD_NUMBER: _ClassVar[int]
    ALGO_FIELD_NUMBER: _ClassVar[int]
    ENV_ID_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    CURVE_POINTS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[RunState]
    algo: str
    env_id: str
    mode: str
    text: str
    page_size: int
    page: str
    curve_points: int
    group: str
    def __init__(self, states: _Optional[_Iterable[_Union[RunState, str]]] = ..., algo: _Optional[str] = ..., env_id: _Optional[str] = ..., mode: _Optional[str] = ..., text: _Optional[str] = ..., page_size: _Optional[int] = ..., page: _Optional[str] = ..., curve_points: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page", "total")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    next_page: str
    total: int
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., next_page: _Optional[str] = ..., total: _Optional[int] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("run_id", "state", "reason", "run_name", "worker_type", "algo", "env_id", "seed", "mode", "total_timesteps", "priority", "attempt", "restarts", "max_restarts", "created_at", "started_at", "ended_at", "step", "episodes", "last_return", "last_length", "sps", "eta_seconds", "exit_code", "signal", "queue_position", "gpus", "warnings", "pid", "folder", "next_seq", "worker_id", "registered", "agent_id", "asked", "payload", "last_values", "artifacts", "external", "mean_return", "group", "curve", "executor", "job", "node", "stalled", "imported", "stalled_since")
    class LastValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RUN_NAME_FIELD_NUMBER: _ClassVar[int]
    WORKER_TYPE_FIELD_NUMBER: _ClassVar[int]
    ALGO_FIELD_NUMBER: _ClassVar[int]
    ENV_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TIMESTEPS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    MAX_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    LAST_RETURN_FIELD_NUMBER: _ClassVar[int]
    LAST_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SPS_FIELD_NUMBER: _ClassVar[int]
    ETA_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQ_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    LAST_VALUES_FIELD_NUMBER: _ClassVar[int]
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    MEAN_RETURN_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CURVE_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    IMPORTED_FIELD_NUMBER: _ClassVar[int]
    STALLED_SINCE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    state: RunState
    reason: str
    run_name: str
    worker_type: str
    algo: str
    env_id: str
    seed: int
    mode: str
    total_timesteps: int
    priority: int
    attempt: int
    restarts: int
    max_restarts: int
    created_at: float
    started_at: float
    ended_at: float
    step: int
    episodes: int
    last_return: float
    last_length: float
    sps: float
    eta_seconds: float
    exit_code: int
    signal: str
    queue_position: int
    gpus: _containers.RepeatedScalarFieldContainer[int]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    pid: int
    folder: str
    next_seq: int
    worker_id: str
    registered: bool
    agent_id: str
    asked: str
    payload: bytes
    last_values: _containers.ScalarMap[str, float]
    artifacts: _containers.RepeatedCompositeFieldContainer[Artifact]
    external: bool
    mean_return: float
    group: str
    curve: _containers.RepeatedScalarFieldContainer[float]
    executor: str
    job: str
    node: str
    stalled: bool
    imported: bool
    stalled_since: float
    def __init__(self, run_id: _Optional[str] = ..., state: _Optional[_Union[RunState, str]] = ..., reason: _Optional[str] = ..., run_name: _Optional[str] = ..., worker_type: _Optional[str] = ..., algo: _Optional[str] = ..., env_id: _Optional[str] = ..., seed: _Optional[int] = ..., mode: _Optional[str] = ..., total_timesteps: _Optional[int] = ..., priority: _Optional[int] = ..., attempt: _Optional[int] = ..., restarts: _Optional[int] = ..., max_restarts: _Optional[int] = ..., created_at: _Optional[float] = ..., started_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., step: _Optional[int] = ..., episodes: _Optional[int] = ..., last_return: _Optional[float] = ..., last_length: _Optional[float] = ..., sps: _Optional[float] = ..., eta_seconds: _Optional[float] = ..., exit_code: _Optional[int] = ..., signal: _Optional[str] = ..., queue_position: _Optional[int] = ..., gpus: _Optional[_Iterable[int]] = ..., warnings: _Optional[_Iterable[str]] = ..., pid: _Optional[int] = ..., folder: _Optional[str] = ..., next_seq: _Optional[int] = ..., worker_id: _Optional[str] = ..., registered: _Optional[bool] = ..., agent_id: _Optional[str] = ..., asked: _Optional[str] = ..., payload: _Optional[bytes] = ..., last_values: _Optional[_Mapping[str, float]] = ..., artifacts: _Optional[_Iterable[_Union[Artifact, _Mapping]]] = ..., external: _Optional[bool] = ..., mean_return: _Optional[float] = ..., group: _Optional[str] = ..., curve: _Optional[_Iterable[float]] = ..., executor: _Optional[str] = ..., job: _Optional[str] = ..., node: _Optional[str] = ..., stalled: _Optional[bool] = ..., imported: _Optional[bool] = ..., stalled_since: _Optional[float] = ...) -> None: ...

class Artifact(_message.Message):
    __slots__ = ("kind", "path", "step", "created_at")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    path: str
    step: int
    created_at: float
    def __init__(self, kind: _Optional[str] = ..., path: _Optional[str] = ..., step: _Optional[int] = ..., created_at: _Optional[float] = ...) -> None: ...

class WatchRunsRequest(_message.Message):
    __slots__ = ("cursor", "progress", "run_id")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    cursor: int
    progress: bool
    run_id: str
    def __init__(self, cursor: _Optional[int] = ..., progress: _Optional[bool] = ..., run_id: _Optional[str] = ...) -> None: ...

class RunChange(_message.Message):
    __slots__ = ("cursor", "kind", "run_id", "from_state", "to_state", "reason", "timestamp", "run")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[RunChange.Kind]
        MOVED: _ClassVar[RunChange.Kind]
        PROGRESS: _ClassVar[RunChange.Kind]
        DELETED: _ClassVar[RunChange.Kind]
        MARKED: _ClassVar[RunChange.Kind]
    KIND_UNSPECIFIED: RunChange.Kind
    MOVED: RunChange.Kind
    PROGRESS: RunChange.Kind
    DELETED: RunChange.Kind
    MARKED: RunChange.Kind
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_STATE_FIELD_NUMBER: _ClassVar[int]
    TO_STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    cursor: int
    kind: RunChange.Kind
    run_id: str
    from_state: RunState
    to_state: RunState
    reason: str
    timestamp: float
    run: Run
    def __init__(self, cursor: _Optional[int] = ..., kind: _Optional[_Union[RunChange.Kind, str]] = ..., run_id: _Optional[str] = ..., from_state: _Optional[_Union[RunState, str]] = ..., to_state: _Optional[_Union[RunState, str]] = ..., reason: _Optional[str] = ..., timestamp: _Optional[float] = ..., run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class RegisterWorkerRequest(_message.Message):
    __slots__ = ("run_id", "worker_id", "worker_kind", "proto_version", "schema_id", "schema_version", "supports_pause", "supports_checkpoint", "boot_id", "pid", "start_ticks", "run_folder", "attempt", "sees_files", "node")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_KIND_FIELD_NUMBER: _ClassVar[int]
    PROTO_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_PAUSE_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    START_TICKS_FIELD_NUMBER: _ClassVar[int]
    RUN_FOLDER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SEES_FILES_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    worker_id: str
    worker_kind: str
    proto_version: str
    schema_id: str
    schema_version: int
    supports_pause: bool
    supports_checkpoint: bool
    boot_id: str
    pid: int
    start_ticks: int
    run_folder: str
    attempt: str
    sees_files: bool
    node: str
    def __init__(self, run_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., worker_kind: _Optional[str] = ..., proto_version: _Optional[str] = ..., schema_id: _Optional[str] = ..., schema_version: _Optional[int] = ..., supports_pause: _Optional[bool] = ..., supports_checkpoint: _Optional[bool] = ..., boot_id: _Optional[str] = ..., pid: _Optional[int] = ..., start_ticks: _Optional[int] = ..., run_folder: _Optional[str] = ..., attempt: _Optional[str] = ..., sees_files: _Optional[bool] = ..., node: _Optional[str] = ...) -> None: ...

class RegisterWorkerResponse(_message.Message):
    __slots__ = ("session_token", "reads_files", "environment")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    READS_FILES_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    session_token: str
    reads_files: bool
    environment: _containers.ScalarMap[str, str]
    def __init__(self, session_token: _Optional[str] = ..., reads_files: _Optional[bool] = ..., environment: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("event", "seq", "timestamp", "payload", "episode", "steps")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    event: str
    seq: int
    timestamp: float
    payload: bytes
    episode: RunEpisode
    steps: RunSteps
    def __init__(self, event: _Optional[str] = ..., seq: _Optional[int] = ..., timestamp: _Optional[float] = ..., payload: _Optional[bytes] = ..., episode: _Optional[_Union[RunEpisode, _Mapping]] = ..., steps: _Optional[_Union[RunSteps, _Mapping]] = ...) -> None: ...

class RunEpisode(_message.Message):
    __slots__ = ("step", "episode_return", "length")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPISODE_RETURN_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    step: int
    episode_return: float
    length: float
    def __init__(self, step: _Optional[int] = ..., episode_return: _Optional[float] = ..., length: _Optional[float] = ...) -> None: ...

class RunSteps(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[RunStep]
    def __init__(self, steps: _Optional[_Iterable[_Union[RunStep, _Mapping]]] = ...) -> None: ...

class RunStep(_message.Message):
    __slots__ = ("step", "env", "reward", "done")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    step: int
    env: int
    reward: float
    done: bool
    def __init__(self, step: _Optional[int] = ..., env: _Optional[int] = ..., reward: _Optional[float] = ..., done: _Optional[bool] = ...) -> None: ...

class TelemetryBatch(_message.Message):
    __slots__ = ("run_id", "events", "metrics_offset", "metrics", "exit")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    METRICS_OFFSET_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    events: _containers.RepeatedCompositeFieldContainer[Event]
    metrics_offset: int
    metrics: bytes
    exit: Exit
    def __init__(self, run_id: _Optional[str] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., metrics_offset: _Optional[int] = ..., metrics: _Optional[bytes] = ..., exit: _Optional[_Union[Exit, _Mapping]] = ...) -> None: ...

class Exit(_message.Message):
    __slots__ = ("code", "signal")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    code: int
    signal: str
    def __init__(self, code: _Optional[int] = ..., signal: _Optional[str] = ...) -> None: ...

class FetchRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class FileChunk(_message.Message):
    __slots__ = ("path", "data")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    path: str
    data: bytes
    def __init__(self, path: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class Control(_message.Message):
    __slots__ = ("stored", "credits", "starved", "resumed", "pause", "go_on", "cancel", "demand")
    class Stored(_message.Message):
        __slots__ = ("next_seq", "metrics_offset", "exit")
        NEXT_SEQ_FIELD_NUMBER: _ClassVar[int]
        METRICS_OFFSET_FIELD_NUMBER: _ClassVar[int]
        EXIT_FIELD_NUMBER: _ClassVar[int]
        next_seq: int
        metrics_offset: int
        exit: bool
        def __init__(self, next_seq: _Optional[int] = ..., metrics_offset: _Optional[int] = ..., exit: _Optional[bool] = ...) -> None: ...
    class Credits(_message.Message):
        __slots__ = ("credits",)
        CREDITS_FIELD_NUMBER: _ClassVar[int]
        credits: int
        def __init__(self, credits: _Optional[int] = ...) -> None: ...
    class Starved(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Resumed(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Pause(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Continue(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Cancel(_message.Message):
        __slots__ = ("grace_seconds",)
        GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
        grace_seconds: float
        def __init__(self, grace_seconds: _Optional[float] = ...) -> None: ...
    class Demand(_message.Message):
        __slots__ = ("frames",)
        FRAMES_FIELD_NUMBER: _ClassVar[int]
        frames: bool
        def __init__(self, frames: _Optional[bool] = ...) -> None: ...
    STORED_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    STARVED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    GO_ON_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    stored: Control.Stored
    credits: Control.Credits
    starved: Control.Starved
    resumed: Control.Resumed
    pause: Control.Pause
    go_on: Control.Continue
    cancel: Control.Cancel
    demand: Control.Demand
    def __init__(self, stored: _Optional[_Union[Control.Stored, _Mapping]] = ..., credits: _Optional[_Union[Control.Credits, _Mapping]] = ..., starved: _Optional[_Union[Control.Starved, _Mapping]] = ..., resumed: _Optional[_Union[Control.Resumed, _Mapping]] = ..., pause: _Optional[_Union[Control.Pause, _Mapping]] = ..., go_on: _Optional[_Union[Control.Continue, _Mapping]] = ..., cancel: _Optional[_Union[Control.Cancel, _Mapping]] = ..., demand: _Optional[_Union[Control.Demand, _Mapping]] = ...) -> None: ...

class TelemetryRequest(_message.Message):
    __slots__ = ("subscribe", "refill")
    class Subscribe(_message.Message):
        __slots__ = ("run_id", "from_seq", "until_seq", "follow", "credits")
        RUN_ID_FIELD_NUMBER: _ClassVar[int]
        FROM_SEQ_FIELD_NUMBER: _ClassVar[int]
        UNTIL_SEQ_FIELD_NUMBER: _ClassVar[int]
        FOLLOW_FIELD_NUMBER: _ClassVar[int]
        CREDITS_FIELD_NUMBER: _ClassVar[int]
        run_id: str
        from_seq: int
        until_seq: int
        follow: bool
        credits: int
        def __init__(self, run_id: _Optional[str] = ..., from_seq: _Optional[int] = ..., until_seq: _Optional[int] = ..., follow: _Optional[bool] = ..., credits: _Optional[int] = ...) -> None: ...
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    REFILL_FIELD_NUMBER: _ClassVar[int]
    subscribe: TelemetryRequest.Subscribe
    refill: int
    def __init__(self, subscribe: _Optional[_Union[TelemetryRequest.Subscribe, _Mapping]] = ..., refill: _Optional[int] = ...) -> None: ...

class TelemetryReply(_message.Message):
    __slots__ = ("batch", "starved", "resumed", "ended")
    class Batch(_message.Message):
        __slots__ = ("events",)
        EVENTS_FIELD_NUMBER: _ClassVar[int]
        events: _containers.RepeatedCompositeFieldContainer[Event]
        def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...
    class Starved(_message.Message):
        __slots__ = ("seq",)
        SEQ_FIELD_NUMBER: _ClassVar[int]
        seq: int
        def __init__(self, seq: _Optional[int] = ...) -> None: ...
    class Resumed(_message.Message):
        __slots__ = ("missed_from", "missed_until")
        MISSED_FROM_FIELD_NUMBER: _ClassVar[int]
        MISSED_UNTIL_FIELD_NUMBER: _ClassVar[int]
        missed_from: int
        missed_until: int
        def __init__(self, missed_from: _Optional[int] = ..., missed_until: _Optional[int] = ...) -> None: ...
    class Ended(_message.Message):
        __slots__ = ("state",)
        STATE_FIELD_NUMBER: _ClassVar[int]
        state: RunState
        def __init__(self, state: _Optional[_Union[RunState, str]] = ...) -> None: ...
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STARVED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    batch: TelemetryReply.Batch
    starved: TelemetryReply.Starved
    resumed: TelemetryReply.Resumed
    ended: TelemetryReply.Ended
    def __init__(self, batch: _Optional[_Union[TelemetryReply.Batch, _Mapping]] = ..., starved: _Optional[_Union[TelemetryReply.Starved, _Mapping]] = ..., resumed: _Optional[_Union[TelemetryReply.Resumed, _Mapping]] = ..., ended: _Optional[_Union[TelemetryReply.Ended, _Mapping]] = ...) -> None: ...

class GetMetricsRequest(_message.Message):
    __slots__ = ("run_id", "keys", "max_points", "since", "average")
    class SinceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    MAX_POINTS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    max_points: int
    since: _containers.ScalarMap[str, int]
    average: bool
    def __init__(self, run_id: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., max_points: _Optional[int] = ..., since: _Optional[_Mapping[str, int]] = ..., average: _Optional[bool] = ...) -> None: ...

class GetMetricsResponse(_message.Message):
    __slots__ = ("series",)
    SERIES_FIELD_NUMBER: _ClassVar[int]
    series: _containers.RepeatedCompositeFieldContainer[Series]
    def __init__(self, series: _Optional[_Iterable[_Union[Series, _Mapping]]] = ...) -> None: ...

class Series(_message.Message):
    __slots__ = ("key", "steps", "times", "values", "cursor", "reset", "total", "highest")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_FIELD_NUMBER: _ClassVar[int]
    key: str
    steps: bytes
    times: bytes
    values: bytes
    cursor: int
    reset: bool
    total: int
    highest: float
    def __init__(self, key: _Optional[str] = ..., steps: _Optional[bytes] = ..., times: _Optional[bytes] = ..., values: _Optional[bytes] = ..., cursor: _Optional[int] = ..., reset: _Optional[bool] = ..., total: _Optional[int] = ..., highest: _Optional[float] = ...) -> None: ...

class StreamFramesRequest(_message.Message):
    __slots__ = ("run_id", "max_fps")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_FPS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    max_fps: float
    def __init__(self, run_id: _Optional[str] = ..., max_fps: _Optional[float] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("run_id", "index", "width", "height", "channels", "data", "encoding", "last_reward", "rolling_return", "step_rate_hz", "reason", "step", "label", "note")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    LAST_REWARD_FIELD_NUMBER: _ClassVar[int]
    ROLLING_RETURN_FIELD_NUMBER: _ClassVar[int]
    STEP_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    index: int
    width: int
    height: int
    channels: int
    data: bytes
    encoding: str
    last_reward: float
    rolling_return: float
    step_rate_hz: float
    reason: str
    step: int
    label: str
    note: str
    def __init__(self, run_id: _Optional[str] = ..., index: _Optional[int] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., channels: _Optional[int] = ..., data: _Optional[bytes] = ..., encoding: _Optional[str] = ..., last_reward: _Optional[float] = ..., rolling_return: _Optional[float] = ..., step_rate_hz: _Optional[float] = ..., reason: _Optional[str] = ..., step: _Optional[int] = ..., label: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class GetHealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Health(_message.Message):
    __slots__ = ("version", "proto_version", "pid", "started_at", "home", "trouble", "runs", "gpus", "cpu_slots", "cpu_slots_free", "subscribers", "rss_bytes", "workers", "problems")
    class RunsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTO_VERSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    HOME_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    CPU_SLOTS_FIELD_NUMBER: _ClassVar[int]
    CPU_SLOTS_FREE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBERS_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    version: str
    proto_version: str
    pid: int
    started_at: float
    home: str
    trouble: str
    runs: _containers.ScalarMap[str, int]
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    cpu_slots: float
    cpu_slots_free: float
    subscribers: int
    rss_bytes: int
    workers: _containers.RepeatedScalarFieldContainer[str]
    problems: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., proto_version: _Optional[str] = ..., pid: _Optional[int] = ..., started_at: _Optional[float] = ..., home: _Optional[str] = ..., trouble: _Optional[str] = ..., runs: _Optional[_Mapping[str, int]] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., cpu_slots: _Optional[float] = ..., cpu_slots_free: _Optional[float] = ..., subscribers: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., workers: _Optional[_Iterable[str]] = ..., problems: _Optional[_Iterable[str]] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("index", "name", "memory_bytes", "run_id")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    memory_bytes: int
    run_id: str
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., run_id: _Optional[str] = ...) -> None: ...
