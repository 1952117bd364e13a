"""How figures of tests/bench/serving are summed up and printed."""

import statistics

median = statistics.median


def paired(samples, base, figure):
    """A figure's ratio to that of `base`, round by round."""
    return [getattr(one, figure) / max(1e-9, getattr(other, figure))
            for one, other in zip(samples, base, strict=True)]


def ratio(samples, base, figure):
    return median(paired(samples, base, figure))


def quartiles(values):
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else 3 * values
    return f"{median(values):.3f} (quartiles {low:.3f} to {high:.3f}, {len(values)} pairs)"


def interval(values):
    """The 95 % interval of the median, from the order of the values (binomial)."""
    values, count = sorted(values), len(values)
    cut = max(0, int(count / 2 - 0.98 * count ** 0.5))
    return values[cut], values[count - 1 - cut]


# --- closed loops --------------------------------------------------------------------------------

def print_heading(title, base):
    print(f"\n{title}\n{'server':>14} {'CPU us':>8} {'requests/s':>11} {'p50 us':>8} {'p99 us':>8} "
          f"{'busy':>5} {'client':>7} | {'CPU':>6} {'req/s':>6} {'p50':>6} {'p99':>6}  "
          f"ratios to {base}")


def print_row(name, samples, base):
    """Medians over rounds, and the medians of the paired ratios."""
    figures = {figure: median(getattr(sample, figure) for sample in samples)
               for figure in ("per_s", "p50_us", "p99_us", "cpu_us", "busy", "client_cpu_us")}
    bad = sum(sample.bad for sample in samples)
    print(f"{name:>14} {figures['cpu_us']:>8.1f} {figures['per_s']:>11,.0f} "
          f"{figures['p50_us']:>8.0f} {figures['p99_us']:>8.0f} {figures['busy']:>5.0%} "
          f"{figures['client_cpu_us']:>7.1f} | {ratio(samples, base, 'cpu_us'):>6.2f} "
          f"{ratio(samples, base, 'per_s'):>6.2f} {ratio(samples, base, 'p50_us'):>6.2f} "
          f"{ratio(samples, base, 'p99_us'):>6.2f}" + (f"  {bad} BAD ANSWERS" if bad else ""),
          flush=True)
