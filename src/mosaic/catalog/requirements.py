"""Requirements: the packages that an environment needs, and the pip line for missing ones."""

from importlib.util import find_spec

from mosaic.catalog.environment import ENVPOOL, Environment
from mosaic.catalog.families import ENVPOOL_EXTRA, ENVPOOL_PACKAGES, FAMILIES, Family, pip_line
from mosaic.catalog.index import on_backend


def missing_package(environment: Environment, backend: str | None = None) -> str | None:
    """Return the packages that this interpreter lacks and their pip line; None if all are installed.

    `backend` is "gymnasium" or "envpool"; by default the environment's first.
    """
    backend = backend or environment.backends[0]
    if backend not in environment.backends:
        raise ValueError(f"{environment.env_id} is made by {' or '.join(environment.backends)}, not by {backend!r}")
    if backend == "envpool":
        packages, line = ENVPOOL_PACKAGES, pip_line(ENVPOOL_EXTRA)
    else:
        group = group_of(environment)
        packages, line = group.packages, group.pip_line
    missing = [package for package in packages if find_spec(package) is None]
    if not missing:
        family = FAMILIES[environment.family]
        trouble = library_trouble(family)
        return trouble and f"{trouble}. {family.system}"
    if len(missing) == 1:
        return f"{missing[0]} is not installed; run: {line}"
    return f"{', '.join(missing[:-1])} and {missing[-1]} are not installed; run: {line}"


def missing_to_train(environment: Environment) -> str | None:
    """Like `missing_package`, but return None if `env_backend` auto can use the other backend for an Atari game."""
    missing = missing_package(environment)
    if missing is None or environment.family != "atari":
        return missing
    other = "gymnasium" if environment.backends == ENVPOOL else "envpool"
    game = on_backend(environment, other)
    return missing if game is None or missing_package(game, other) else None


def library_trouble(family: Family) -> str | None:
    """Return why a system library of a family does not load, else None; `family.system` has the remedy."""
    if not family.libraries:
        return None
    import ctypes

    for library in family.libraries:
        try:
            ctypes.CDLL(library)
        except OSError as error:
            said = " ".join(str(error).split())
            absent, found, _ = said.partition(": cannot open shared object file")
            if not found:
                return f"{library} cannot be loaded ({said})"
            return f"{absent}, which {library} needs, is not there" if absent != library else f"{library} is not there"
    return None


def group_of(environment: Environment) -> Family:
    """Return the environment's group, or its family if it has no group."""
    family = FAMILIES[environment.family]
    return next((group for group in family.groups if group.name == environment.group), family)
