"""Numbers as they are shown; nothing is rounded anywhere else."""

from fractions import Fraction

from kvplan.units import format_bytes as format_bytes  # noqa: PLC0414 - reports take it from here


def count(value: int | None) -> str:
    """A count with thousands separated; ``-`` where it is not known.

    >>> count(131072), count(None)
    ('131,072', '-')
    """
    return "-" if value is None else f"{value:,}"


def exact(value: Fraction | int) -> str:
    """A rate with its fraction.

    >>> exact(Fraction(131072)), exact(Fraction(73, 16))
    ('131,072', '4.5625')
    """
    return f"{int(value):,}" if value == int(value) else f"{float(value):,.10g}"


def ratio(value: Fraction | float, digits: int = 2) -> str:
    """A plain number with a few digits.

    >>> ratio(Fraction(10, 3)), ratio(1234.5)
    ('3.33', '1,234')
    """
    number = float(value)
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.{digits}f}"


def percent(share: float) -> str:
    """A share of 0 to 1 as a percentage. What is not 0 is never shown as 0, what is not all never as 100%.

    >>> percent(0.81), percent(0.9981), percent(0.0004), percent(1.0), percent(0.0), percent(0.99999)
    ('81%', '99.8%', '0.04%', '100%', '0', '> 99.9%')
    """
    if share == 0:
        return "0"
    if share == 1:
        return "100%"
    if 0.999 < share < 1:
        return "> 99.9%"
    if 0 < share < 0.0001:
        return "< 0.01%"
    value = share * 100
    digits = 2 if value < 0.095 else 1 if value < 9.95 or 99 <= value < 100 else 0
    text = f"{value:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}%"


def seconds(value: float | None) -> str:
    """A time, with two or three significant digits.

    >>> seconds(0.0044), seconds(0.0123), seconds(4.12), seconds(62.3), seconds(7500.0), seconds(None)
    ('4.4 ms', '12 ms', '4.1 s', '62 s', '2.1 h', '-')
    """
    if value is None:
        return "-"
    if value >= 3600:
        return f"{value / 3600:.1f} h"
    if value >= 600:
        return f"{value / 60:.0f} min"
    if value >= 9.95:
        return f"{value:.0f} s"
    if value >= 0.9995:
        return f"{value:.1f} s"
    return f"{value * 1000:.{1 if 0 < value < 0.00995 else 0}f} ms"


def plain_seconds(value: float | None) -> str:
    """Seconds without their unit, for a column that names it.

    >>> plain_seconds(0.952), plain_seconds(8.61), plain_seconds(62.3), plain_seconds(7500.0), plain_seconds(None)
    ('0.95', '8.6', '62', '7,500', '-')
    """
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 0.9995 else f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"


def figure(name: str, value: float | None) -> str:
    """A figure in the unit that its name ends with.

    >>> figure("refused_share", 0.042), figure("ttft_p99_s", 4.81), figure("kv_pool_bytes", 2**30), figure("gpus", 2)
    ('4.2%', '4.8 s', '1 GiB', '2')
    """
    if value is None:
        return "-"
    if name.endswith("_share"):
        return percent(value)
    if name.endswith("_bytes"):
        return format_bytes(int(value))
    if name.endswith(("_per_s", "_per_hour")):
        return ratio(value)
    if name.endswith("_s"):
        return "0" if value == 0 else seconds(value)
    return count(int(value)) if value == int(value) else ratio(value)


def figure_beside(name: str, value: float | None, other: float | None) -> str:
    """The figure with as many digits as it takes to tell it from ``other``.

    >>> figure_beside("refused_share", 0.0104, 0.01), figure_beside("kv_pool_bytes", 2**30 + 1, 2**30)
    ('1.04%', '1,073,741,825 B')
    >>> figure_beside("e2e_mean_s", 1.503, 1.533), figure_beside("queue_p90_s", 0.00928, 0.00902)
    ('1.5 s', '9.3 ms')
    """
    shown = figure(name, value)
    if value is None or other is None or value == other or shown != figure(name, other):
        return shown
    if name.endswith("_bytes"):
        return f"{int(value):,} B"
    scale, unit = (100, "%") if name.endswith("_share") else (1, "")
    if name.endswith("_s") and not name.endswith("_per_s"):
        scale, unit = (1, " s") if max(value, other) >= 1 else (1000, " ms")
    texts = ([f"{number * scale:,.{digits}g}" for number in (value, other)] for digits in range(2, 18))
    return next(f"{own}{unit}" for own, its in texts if own != its)


def parameters(value: int | None) -> str | None:
    """A parameter count with B or M; None where it is not known.

    >>> parameters(8030261248), parameters(494032768), parameters(None)
    ('8.03 B parameters', '494 M parameters', None)
    """
    if value is None:
        return None
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if value >= unit:
            digits = 2 if value < 10 * unit else 1 if value < 100 * unit else 0
            return f"{value / unit:.{digits}f} {name} parameters"
    return f"{value:,} parameters"


def json_number(value: Fraction | int | None) -> int | float | str | None:
    """A number for JSON without loss: an integer if it is whole, a float if that is exact, otherwise ``"a/b"``.

    >>> json_number(Fraction(8)), json_number(Fraction(73, 16)), json_number(Fraction(1, 3)), json_number(None)
    (8, 4.5625, '1/3', None)
    """
    if value is None or isinstance(value, int):
        return value
    if value.denominator == 1:
        return value.numerator
    near = value.numerator / value.denominator
    return near if Fraction(near) == value else str(value)
