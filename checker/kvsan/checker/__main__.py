"""The console script, and `python -m kvsan.checker`.

Nothing is imported before it is known what to say if it cannot be: the base install has numpy alone, and exit status 1
means "hazards" and nothing else.
"""

import sys

MISSING = 2
INTERRUPTED = 130


def main() -> None:
    """Runs `kvsan.checker.cli`."""
    try:
        from kvsan.checker.cli import main as run
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("kvsan"):
            raise
        print(
            f"kvsan: the command line needs the package {error.name}; accepted: pip install 'kvsan[checker]'",
            file=sys.stderr,
        )
        sys.exit(MISSING)
    run()


if __name__ == "__main__":
    main()
