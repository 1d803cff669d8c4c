"""The `dragoman` command and its sub-commands. Knows nothing of torch."""

from typing import Annotated

import typer

from dragoman import __version__
from dragoman.cli import (
    align,
    calibrate,
    classify,
    compress,
    config,
    corpus,
    demo,
    doctor,
    evaluate,
    export,
    forecast,
    generate,
    import_,
    info,
    inspect,
    report,
    score,
    serve,
    shortlist,
    train,
    transcribe,
    translate,
    words,
)

app = typer.Typer(
    name="dragoman",
    help="The Transformer of 'Attention Is All You Need': train it on parallel text, translate with it, look inside.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train.command)
app.command("translate")(translate.command)
app.command("serve")(serve.command)
app.command("score")(score.command)
app.command("align")(align.command)
app.command("evaluate")(evaluate.command)
app.command("inspect")(inspect.command)
app.command("report")(report.command)
app.command("generate")(generate.command)
app.command("classify")(classify.command)
app.command("transcribe")(transcribe.command)
app.command("forecast")(forecast.command)
app.command("corpus")(corpus.command)
app.command("info")(info.command)
app.command("compress")(compress.command)
app.command("shortlist")(shortlist.command)
app.command("calibrate")(calibrate.command)
app.command("words")(words.command)
app.add_typer(import_.app, name="import")
app.command("export")(export.command)
app.command("config")(config.command)
app.command("doctor")(doctor.command)
app.command("demo")(demo.command)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"dragoman {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Global options come before the command's name: dragoman --debug train ..."""
