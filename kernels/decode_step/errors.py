"""What the step refuses: an argument that makes no sense, and a step that the memory cannot hold."""


class StepError(ValueError):
    """An argument of the step is not accepted; the message names it, what came and what is accepted."""


class DoesNotFit(StepError):
    """The step needs more memory than the device has free; the message says what would fit."""


def reject(name: str, got, accepted: str):
    """Raise a `StepError` that names the argument, what came and what is accepted."""
    raise StepError(f"{name}: got {got}, accepted is {accepted}")


def whole(name: str, value, low: int = 1) -> int:
    """`value` if it is an integer of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        reject(name, repr(value), f"an integer from {low} up")
    return value
