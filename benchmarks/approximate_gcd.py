"""`_approximate_gcd` of three values: kvplan beside vLLM 0.33.0, which tries every divisor.

vLLM's time grows with the largest value, so it is left out where one call takes over ten seconds.
"""

import argparse
import random

from side_by_side import median_seconds, oracle, report, show_ratio, show_seconds

LARGEST_FOR_VLLM = 10**7


def values_near(largest, rng):
    """Three values within a third of the largest one, which is among them."""
    return [largest, *(rng.randint(2 * largest // 3, largest) for _ in range(2))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    options = parser.parse_args()

    from kvplan import planning

    rng = random.Random(0)
    rows = []
    for exponent in range(2, 10):
        values = values_near(10**exponent, rng)
        ours = median_seconds(lambda: planning._approximate_gcd(values))  # noqa: B023
        theirs = None
        if values[0] <= LARGEST_FOR_VLLM:
            reference = oracle.kv_cache_planning._approximate_gcd
            if reference(values) != planning._approximate_gcd(values):
                raise SystemExit(f"the answers for {values} differ")
            theirs = median_seconds(lambda: reference(values))  # noqa: B023
        cells = [show_seconds(theirs), show_seconds(ours), show_ratio(theirs, ours)]
        rows.append([f"10^{exponent}", *cells])
    report(["largest value", "vLLM 0.33.0", "kvplan", "ratio"], rows, options.json)


if __name__ == "__main__":
    main()
