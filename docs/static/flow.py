"""Draws flow.svg: the path of one gradient, above a timeline of refreshes.

Text stands in filled boxes, or is of a grey that light and dark pages both show.

    python docs/static/flow.py
"""

import pathlib

WIDTH, HEIGHT = 735, 560
INK, GREY = "#1b2733", "#747b83"
BLUE, ORANGE, GREEN = "#cfe3f7", "#ffd9a8", "#d3ecd0"
EDGE = {BLUE: "#3b78b5", ORANGE: "#d0740a", GREEN: "#3f8f3a"}
LATEST = 120


def text(x, y, words, size=14, colour=GREY, anchor="middle", family="sans-serif"):
    """Writes words at a place."""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" '
        f'text-anchor="{anchor}" font-family="{family}">{words}</text>'
    )


def rectangle(x, y, width, height, fill, radius=0):
    """Draws a filled rectangle with the edge of its colour."""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}" '
        f'fill="{fill}" stroke="{EDGE[fill]}" stroke-width="1.3"/>'
    )


def box(x, y, width, lines, fill):
    """Draws a box of one height with lines of text."""
    first = y + 34 - 9 * (len(lines) - 1)
    words = [
        text(x + width / 2, first + 19 * i, line, 14, INK)
        for i, line in enumerate(lines)
    ]
    return rectangle(x, y, width, 58, fill, 7) + "".join(words)


def arrow(*points):
    """Draws a line through points, with a head at its end."""
    path = " ".join(f"{x},{y}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{GREY}" stroke-width="1.8" '
        'marker-end="url(#head)"/>'
    )


def grid(x, y, columns, rows, width, height, side):
    """Draws a matrix, cut into tiles of a side; what is beyond it is padding."""
    lines = []
    for row in range(rows):
        for column in range(columns):
            left, top = x + column * side, y + row * side
            lines.append(
                f'<rect x="{left}" y="{top}" width="{side}" height="{side}" '
                f'fill="none" stroke="{EDGE[BLUE]}" stroke-dasharray="3 2"/>'
            )
    return rectangle(x, y, width, height, BLUE) + "".join(lines)


def stack(x, y, side, count):
    """Draws tiles that lie behind each other."""
    behind = reversed(range(count))
    return "".join(rectangle(x + 7 * i, y - 5 * i, side, side, BLUE) for i in behind)


def pictures():
    """Draws gradients, their tiles, and the stacks."""
    return [
        rectangle(30, 34, 72, 56, BLUE),
        rectangle(114, 34, 26, 26, BLUE),
        text(18, 112, "gradients, seen as matrices", 13, anchor="start"),
        arrow((172, 62), (226, 62)),
        grid(250, 34, 3, 2, 72, 56, 30),
        grid(354, 34, 1, 1, 26, 26, 26),
        text(316, 112, "equal tiles, padded at the end", 13),
        arrow((406, 62), (460, 62)),
        stack(488, 56, 38, 6),
        stack(606, 60, 26, 3),
        text(580, 112, "one stack for each shape of tile", 13),
        text(316, 131, "_tiles.py", 12.5, family="monospace"),
    ]


def steps():
    """Draws what happens to each tile, and then to each parameter."""
    inside = [
        box(34, 196, 148, ["refresh the roots,", "if one is due"], ORANGE),
        arrow((182, 225), (202, 225)),
        box(208, 196, 148, ["apply the roots", "from both sides"], BLUE),
        arrow((356, 225), (376, 225)),
        box(382, 196, 148, ["average over time", "(momentum)"], BLUE),
        arrow((530, 225), (550, 225)),
        box(556, 196, 148, ["length of SGD's or", "Adam's step"], GREEN),
    ]
    files = [
        (108, "_paper.py or"),
        (282, "_paper.py or"),
        (456, "_step.py"),
        (618, "lengths.py"),
    ]
    names = [text(x, 272, name, 12.5, family="monospace") for x, name in files]
    names += [
        text(x, 287, "_whitening.py", 12.5, family="monospace") for x in (108, 282)
    ]
    return [
        arrow((700, 62), (724, 62), (724, 150), (108, 150), (108, 190)),
        f'<rect x="18" y="166" width="702" height="158" rx="10" fill="none" '
        f'stroke="{GREY}" stroke-dasharray="5 4"/>',
        text(707, 185, "for each tile alone", 13, anchor="end"),
        *inside,
        *names,
        text(
            369,
            313,
            "Whitening averages first, and applies the roots to the average.",
            13,
        ),
        arrow((690, 254), (690, 346), (108, 346), (108, 366)),
        box(34, 372, 148, ["tiles put back,", "padding dropped"], BLUE),
        arrow((182, 401), (202, 401)),
        box(208, 372, 148, ["plus weight decay"], GREEN),
        arrow((356, 401), (376, 401)),
        box(382, 372, 148, ["times learning rate"], GREEN),
        arrow((530, 401), (550, 401)),
        box(556, 372, 148, ["updates"], BLUE),
    ]


def timeline(y, name, refreshes):
    """Draws a mark for each step up to the latest, high at refreshes."""
    marks = []
    for step in range(LATEST + 1):
        x, due = 108 + 4.9 * step, step in refreshes
        colour, width, top = (EDGE[ORANGE], 2.4, 18) if due else (GREY, 0.8, 6)
        marks.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y - top}" '
            f'stroke="{colour}" stroke-width="{width}"/>'
        )
    return text(18, y, name, 14, anchor="start") + "".join(marks)


def times():
    """Draws the timelines of both rules, above the numbers of steps."""
    every_tenth = set(range(0, LATEST + 1, 10))
    numbers = [text(108 + 4.9 * n, 551, n, 13) for n in range(0, LATEST + 1, 20)]
    title = "Steps at which the roots are refreshed, at update_interval=10"
    return [
        text(18, 466, title, 14, anchor="start"),
        timeline(498, "Whitening", every_tenth | set(range(50))),
        timeline(530, "the paper's", every_tenth),
        *numbers,
        text(18, 551, "step", 13, anchor="start"),
    ]


def draw():
    """Returns the picture."""
    head = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="6" '
        f'markerHeight="6" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{GREY}"/>'
        "</marker></defs>"
    )
    start = (
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
        "<title>The path of one gradient, and the steps with a refresh</title>"
    )
    parts = [start, head, *pictures(), *steps(), *times(), "</svg>"]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    pathlib.Path(__file__).with_suffix(".svg").write_text(draw())
