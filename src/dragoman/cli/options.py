"""Options that several commands share, with one wording."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_MODEL = Path("en-de")  # bundled
Split = Annotated[
    str | None,
    typer.Option(help="sentences: each alone; long: only lines that are too long.  \\[default: the model's]"),
]
Shortlist = Annotated[
    bool | None,
    typer.Option(
        "--shortlist/--no-shortlist",
        help="Search among likely target pieces only, on a CPU.  \\[default: the model's]",
    ),
]
TargetLanguage = Annotated[
    str | None, typer.Option(metavar="TAG", help="Of an imported model that translates into several, such as deu.")
]
Model = Annotated[
    Path, typer.Option("--model", "-m", metavar="DIR", help="The model directory, or the name of a bundled model.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
Precision = Annotated[str, typer.Option(help="float32, bfloat16 or int8.")]
SearchPrecision = Annotated[
    str,
    typer.Option(help="auto, float32, bfloat16 or int8; auto: bfloat16 on a GPU, int8 for int8 weights on a CPU."),
]
Engine = Annotated[str, typer.Option(help="auto, plain, cuda or cpu; `dragoman info` names the one auto takes.")]
Threads = Annotated[
    int | None, typer.Option(metavar="N", help="CPU threads; by default one per core, one for a small model.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
