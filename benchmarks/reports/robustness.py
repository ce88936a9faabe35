"""Tables of docs/robustness.md."""

from benchmarks.harness import results
from benchmarks.reports.rules import Table


def fuzz() -> Table:
    """Rows: attacks."""
    rows = results.read("fuzz")["rows"]
    header = ["attack", "cases", "updates", "refused by name", "faults"]
    table = [
        [
            row["attack"],
            f"{row['cases']:,}",
            *(f"{row[key]:,}" if key in row else "" for key in ("steps", "refused")),
            str(row["faults"]),
        ]
        for row in rows
    ]
    total = [sum(row.get(key, 0) for row in rows) for key in ("cases", "steps")]
    faults = sum(row["faults"] for row in rows)
    refused = sum(row.get("refused", 0) for row in rows)
    table.append(["all", *(f"{x:,}" for x in (*total, refused)), str(faults)])
    return header, table


def descent() -> Table:
    """Rows: rules, with the dtype of their roots and the precision of products."""
    rows = results.read("descent")["rows"]
    table = []
    for rule in dict.fromkeys(row["rule"] for row in rows):
        own = [row for row in rows if row["rule"] == rule]
        least = min(own, key=lambda row: row["cosine"])
        table.append(
            [
                rule,
                f"{len(own)} x {min(row['refreshes'] for row in own):,}",
                f"{least['cosine']:.2g} ({least['stream']})",
                str(sum(not row["cosine"] > 0 for row in own)),
                str(sum(row["ascents"] for row in own)),
                str(sum(not row["smallest"] > 0 for row in own)),
            ]
        )
    header = [
        "rule",
        "streams x refreshes",
        "least cosine of direction and gradient (stream)",
        "streams with an ascent",
        "times that the guard of the step acted",
        "streams with an indefinite root",
    ]
    return header, table
