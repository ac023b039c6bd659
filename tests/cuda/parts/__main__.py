"""The command of `benchmarks.cuda` over these parts, of which one may take 25 seconds."""

from benchmarks.cuda.__main__ import main

if __name__ == "__main__":
    raise SystemExit(
        main(package="tests.cuda.parts", parts=("quick", "missed", "failing", "slow", "killed"), seconds=25)
    )
