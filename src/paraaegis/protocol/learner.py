"""A client's learner, which may be anyone's code: made when first needed, and every result checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paraaegis.crypto.shuffle import digest
from paraaegis.crypto.streams import system
from paraaegis.errors import ConfigError, LearnerError, ParaAegisError, PrivacyError, UpdateError
from paraaegis.plural import plural
from paraaegis.types import Arrays, Draw, Learner, Metrics, RecordPrivacy, Vector


class LearnerFacts(msgspec.Struct, frozen=True):
    """What a run needs to know about a learner before it trains."""

    samples: int
    length: int  # values in its model
    model: str  # digest of its first model


class CheckedLearner:
    """A client's learner. Whatever it returns is checked, and every error names the client.

    It is made when it is first needed, since half of a round's messages do not need it; `facts` are known without it.
    `first` is its first model, if that was made already. With `record_privacy` it must train with exactly that.
    """

    def __init__(
        self,
        client: str,
        make: Callable[[], Learner],
        facts: LearnerFacts,
        first: Vector | None = None,
        record_privacy: RecordPrivacy | None = None,
    ) -> None:
        self.client, self.facts, self.samples, self.record_privacy = client, facts, facts.samples, record_privacy
        self._make, self._first = make, first

    @cached_property
    def made(self) -> Learner:
        """The learner itself; refused if its data has changed since the client introduced itself."""
        learner = self._make()
        if learner.samples != self.samples:
            raise LearnerError(
                f"{self.client} has {plural(learner.samples, 'sample')} now and had {self.samples} when it joined the "
                "run; restart the run, so that all clients agree on weights again"
            )
        return learner

    @property
    def has_batch_norm(self) -> bool:
        """Whether it says that its model keeps running statistics, whose updates can be large."""
        return bool(getattr(self.made, "has_batch_norm", False))

    def initial(self) -> Vector:
        """The first model."""
        if self._first is not None:
            return self._first
        first = _first_model(self.client, self.made)
        if digest(first).hex() != self.facts.model:
            raise LearnerError(
                f"the first model of {self.client} is not the one that it had when it joined the run; set the seed "
                "where the model is built, such as torch.manual_seed(config.seed)"
            )
        return first

    def train(self, weights: Vector, number: int) -> tuple[Vector, Metrics]:
        """The model after local training in this round, and the metrics that training returned."""
        if getattr(self.made, "record_privacy", None) != self.record_privacy:
            raise PrivacyError(f"the learner of {self.client} would not train with the DP-SGD that was accounted for")
        with self._named(f"train in round {number}"):
            returned = self.made.train(_read_only(weights), number)
        alone = not isinstance(returned, tuple)
        if not alone and len(returned) != 2:
            raise LearnerError(
                f"train of {self.client}'s learner must return (weights, metrics) or the weights alone, got "
                f"{plural(len(returned), 'value')}"
            )
        trained, returned_metrics = (returned, {}) if alone else returned
        metrics = self._numbers(returned_metrics or {}, "train")
        if not math.isfinite(loss := metrics.get("loss", 0.0)):
            raise UpdateError(
                f"training of {self.client} in round {number} gave a loss of {loss}; lower the learning rate, or look "
                "for NaN in the data"
            )
        return self._checked(trained, "train"), metrics

    def apply(self, weights: Vector, delta: Vector) -> Vector:
        """The model after the aggregated update."""
        with self._named("apply"):
            applied = self.made.apply(_read_only(weights), _read_only(delta))
        return self._checked(applied, "apply")

    def evaluate(self, weights: Vector) -> Metrics:
        """Metrics of the model."""
        with self._named("evaluate"):
            metrics = self.made.evaluate(_read_only(weights))
        return self._numbers(metrics, "evaluate")

    def state(self) -> Arrays:
        """What must survive a restart in addition to the model."""
        with self._named("state"):
            state = self.made.state()
        if not isinstance(state, Mapping) or any(
            not isinstance(array, np.ndarray) or array.dtype.hasobject for array in state.values()
        ):
            raise LearnerError(f"state of {self.client}'s learner must return a dict of numpy arrays by name")
        return dict(state)

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Load what `state` returned."""
        with self._named("load"):
            self.made.load(state)

    def _checked(self, vector: Any, method: str) -> Vector:
        checked = _as_vector(vector, f"{method} of {self.client}'s learner")
        if checked.size != self.facts.length:
            raise LearnerError(
                f"{method} of {self.client}'s learner must return {self.facts.length} values, as many as its first "
                f"model has, got {checked.size}"
            )
        return checked

    def _numbers(self, metrics: Any, method: str) -> Metrics:
        what = f"{method} of {self.client}'s learner"
        if not isinstance(metrics, Mapping):
            raise LearnerError(f"{what} must return a dict of numbers by name as metrics, got {_kind(metrics)}")
        numbers: Metrics = {}
        for name, value in metrics.items():
            try:
                if isinstance(value, (str, bytes)):  # which float would read
                    raise TypeError
                numbers[str(name)] = float(value)
            except (TypeError, ValueError, RuntimeError) as error:  # torch's, of a tensor
                raise LearnerError(f"{what} returned {_kind(value)} for {name!r}; return a number") from error
        return numbers

    def _named(self, doing: str) -> Any:
        return _naming_client(self.client, doing)


@contextmanager
def _naming_client(client: str, doing: str) -> Iterator[None]:
    """Errors of a learner name its client and what it was doing; the learner's own traceback stays attached."""
    try:
        yield
    except ParaAegisError as error:  # ours, about what the learner was given
        raise type(error)(f"{client}: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise LearnerError(f"{doing} of {client}'s learner failed: {reason}") from error


def protect_records(client: str, learner: Learner, privacy: RecordPrivacy | None, draw: Draw) -> None:
    """Make a learner train with DP-SGD, or without; refused if it cannot. `draw` draws its samples and noise."""
    protect = getattr(learner, "protect_records", None)
    if protect is not None:  # again in every run: an earlier one may have had a seeded generator
        with _naming_client(client, "protect_records"):
            protect(privacy, draw)
    elif privacy is not None and getattr(learner, "record_privacy", None) != privacy:  # and it was not built with it
        raise ConfigError(
            f'privacy.unit = "record" needs the training loop of this library, but the learner of {client} (a '
            f"{type(learner).__name__}) has its own; use torch_learner(model, data=...)"
        )


def introduce(client: str, learner: Learner) -> tuple[LearnerFacts, Vector]:
    """The facts of a learner, and its first model; refused if it has no samples or no usable model."""
    samples = getattr(learner, "samples", None)
    if isinstance(samples, np.integer):
        samples = int(samples)
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        raise LearnerError(
            f"samples of {client}'s learner must be a whole number of at least 1, the number of its training samples; "
            f"got {samples!r}"
        )
    first = _first_model(client, learner)
    return LearnerFacts(samples, first.size, digest(first).hex()), first


def _first_model(client: str, learner: Learner) -> Vector:
    """The first model of a learner, as one vector."""
    with _naming_client(client, "initial"):
        first = learner.initial()
    vector = _as_vector(first, f"initial of {client}'s learner")
    if not vector.size or not np.isfinite(vector).all():
        raise LearnerError(
            f"initial of {client}'s learner must return the values of a model, got "
            f"{'NaN or infinity' if vector.size else 'none'}"
        )
    return vector


def check_learners(
    learners: Mapping[str, Learner],
    record_privacy: RecordPrivacy | None = None,
    draws: Callable[[int], Draw] = lambda _client: lambda _number: system(),
) -> dict[str, CheckedLearner]:
    """The learners of one process. Their first models are made one after the other, and must be equal.

    With `record_privacy` they train with DP-SGD, each with the generators that `draws` gives for its index; by default
    these are secret.
    """
    _refuse_sharing(learners)
    checked: dict[str, CheckedLearner] = {}
    for index, (name, learner) in enumerate(learners.items()):
        protect_records(name, learner, record_privacy, draws(index))
        facts, first = introduce(name, learner)
        reference = next(iter(checked.values()), None)
        if reference is not None:
            _same_model(reference.facts, reference.client, facts, name)
            first = reference.initial()  # one array for all
        checked[name] = CheckedLearner(name, partial(_given, learner), facts, first, record_privacy)
    return checked


def _refuse_sharing(learners: Mapping[str, Learner]) -> None:
    """Refuse one learner, or one model that learners write to, for two clients: they train at the same time."""
    owners: dict[int, tuple[str, object]] = {}
    for name, learner in learners.items():
        model = getattr(learner, "model", None)
        loaded = hasattr(model, "load_state_dict")  # like a torch module; a mere description may be shared
        for thing, what in ((learner, "learner"), *([(model, "model")] if loaded else [])):
            other, _ = owners.setdefault(id(thing), (name, thing))
            if other != name:
                raise LearnerError(
                    f"{other} and {name} have the same {what}, but train at the same time; build a model and a learner "
                    "for each client"
                )


def _given(learner: Learner) -> Learner:
    return learner


def _same_model(facts: LearnerFacts, client: str, other: LearnerFacts, name: str) -> None:
    if other.length != facts.length:
        raise LearnerError(
            f"the model of {name} has {plural(other.length, 'value')}, that of {client} {facts.length}; all clients of "
            "a run need the same network"
        )
    if other.model != facts.model:
        raise LearnerError(
            f"the first models of {client} and {name} differ; all clients must start from the same values: set the "
            "seed right before the model is built, such as torch.manual_seed(config.seed), or load the same weights"
        )


def _as_vector(returned: Any, what: str) -> Vector:
    """A model as a vector of float32, however it was returned: refused if it is none."""
    if not isinstance(returned, np.ndarray) or returned.ndim != 1 or returned.dtype != np.float32:
        shape = f" of {returned.dtype} and shape {returned.shape}" if isinstance(returned, np.ndarray) else ""
        raise LearnerError(
            f"{what} must return the model as one numpy vector of float32, got {_kind(returned)}{shape}"
            + ("; did it return nothing?" if returned is None else "")
        )
    return returned


def _kind(value: Any) -> str:
    """The type of a value, for an error."""
    return type(value).__name__


def _read_only(vector: Vector) -> Vector:
    """A view that a learner cannot write to: a model changed in place would look as if nothing had been learnt."""
    view = vector.view()
    view.flags.writeable = False
    return view
