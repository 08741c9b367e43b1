"""The table: one line for each thing that is required, and whether it is met."""

from dataclasses import asdict, dataclass


@dataclass
class Line:
    """What was measured, of toolway and of what it is held against."""

    row: str
    what: str
    toolway: float
    unit: str
    other: float | None = None
    against: str = "nginx"
    # Bounds of the ratio to `other`, or of toolway's own figure if `absolute`. Neither: nothing is required.
    most: float | None = None
    least: float | None = None
    absolute: bool = False

    def ratio(self):
        return self.toolway / self.other if self.other else None

    def required(self):
        sign, bound = ("≤", self.most) if self.most is not None else ("≥", self.least)
        if bound is None:
            return "–"
        return f"{sign} {bound:g} {self.unit}" if self.absolute else f"{sign} {bound:g} × {self.against}"

    def met(self):
        """None if nothing is required, or if there is nothing to say it by."""
        value = self.toolway if self.absolute else self.ratio()
        if value is None or (self.most is None and self.least is None):
            return None
        return value <= self.most if self.most is not None else value >= self.least

    def facts(self):
        return {**asdict(self), "ratio": self.ratio(), "required": self.required(), "met": self.met()}


def markdown(lines, conditions, smoke=False):
    out = []
    if smoke:
        out += ["A smoke run: replies were checked, and the figures mean nothing.", ""]
    out += [
        "| what | required | toolway | held against | ratio | met |",
        "|---|---|---:|---:|---:|---|",
    ]
    out += [markdown_line(line, smoke) for line in lines]
    out += ["", *conditions]
    return "\n".join(out)


def markdown_line(line, smoke=False):
    other = f"{line.against} {number(line.other)} {line.unit}" if line.other is not None else "–"
    ratio = f"{line.ratio():.2f}" if line.ratio() is not None else "–"
    met = {None: "–", True: "yes", False: "**no**"}[None if smoke else line.met()]
    return f"| {line.what} | {line.required()} | {number(line.toolway)} {line.unit} | {other} | {ratio} | {met} |"


def number(value):
    """Three digits that count."""
    if abs(value) >= 1000:
        return f"{round(value, -2) if abs(value) >= 10_000 else value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
