"""Parameters of algorithms, read from their sources."""

from cleanrl_worker.schema.parameters import Field as Field
from cleanrl_worker.schema.parameters import describe as describe
from cleanrl_worker.schema.parameters import read_fields as read_fields
