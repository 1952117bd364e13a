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


# --- open loops ----------------------------------------------------------------------------------

def print_open_heading(title):
    print(f"\n{title}\n{'server':>9} {'load':>10} {'rate/s':>8} {'200s/s':>8} {'good':>6} {'in time':>7} "
          f"{'p50 us':>8} {'p99 us':>9} {'p99/p50':>7} {'503s':>7} {'their p99':>9} {'sent':>7} "
          f"{'lost':>5} {'no reply':>8} {'late p99':>8}")


def print_phase(name, load, phases):
    """Medians over rounds of one phase, where each has `peak`, that of its round."""
    for phase in phases:
        phase["good"] = phase["answered_per_s"] / phase["peak"]
        phase["in_time"] = phase["in_time_per_s"] / phase["peak"]
        phase["spread"] = phase["p99_us"] / phase["p50_us"] if phase["p50_us"] else 0
        phase["broken"] = phase["lost"] + phase["other"]
    figure = {key: median(phase[key] for phase in phases) for key in phases[0]}
    print(f"{name:>9} {load:>10} {figure['rate']:>8,.0f} {figure['answered_per_s']:>8,.0f} "
          f"{figure['good']:>6.0%} {figure['in_time']:>7.0%} {figure['p50_us']:>8.0f} {figure['p99_us']:>9.0f} "
          f"{figure['spread']:>7.1f} {figure['rejected']:>7.0f} {figure['rejected_p99_us']:>9.0f} "
          f"{figure['rejected_once_sent_p99_us']:>7.0f} "
          f"{figure['broken']:>5.0f} {figure['unanswered']:>8.0f} "
          f"{figure['late_p99_us']:>8.0f}", flush=True)
    return figure


OPEN_LEGEND = """
Latencies count from when a request was due. good: 200s per second, of the peak; in time: those
within the latency target. late p99: how late the generator itself was, us; sent: the 503s' p99 from
when they were really sent."""
