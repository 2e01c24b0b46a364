"""`tidegate checkpoint`: what a job saved, and layers of it taken out."""

from __future__ import annotations
import typer

app = typer.Typer(no_args_is_help=True, help="List a job's checkpoints and take layers out of them.")


@app.command("ls")
def ls() -> None:
    """List."""


@app.command("restore")
def restore() -> None:
    """Restore."""
