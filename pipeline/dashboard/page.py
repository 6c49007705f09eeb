"""`/learners`, the page, and `/individual-learners`, a plot for the JupyterLab extension; both by Bokeh.

Uses inner parts of Dask's dashboard, as none of them is public: the applications of a scheduler and its template. They
are those of distributed 2026.8; a test tells where they have changed.
"""

import time
from typing import Any

from bokeh.layouts import column, row
from bokeh.models.widgets import Select
from distributed.dashboard.components import DashboardComponent, add_periodic_callback
from distributed.dashboard.components.scheduler import BOKEH_THEME, env, individual_doc
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import applications, template_variables
from tornado.ioloop import IOLoop

from . import series, tables, words
from .charts import STEPS, Chart, LineChart, ReturnChart, ShareChart
from .html_part import html_part
from .live_runs import Entry
from .routes import prefix_of

UPDATE_MILLISECONDS = 2000
"""Drawing costs the scheduler, which may share its cores with learners: a run is not watched by the second."""
_NEWEST = ""
"""In place of a run's id, which is never empty: whatever a stranger calls a run, it is not this."""
_AGO = "time, minutes from now"
_NO_LOSS = "The loss of each module appears here after a run's first steps."
_NO_RATE = "The speed of each learner appears here."
_NO_SHARES = "How much each learner waits, computes and exchanges appears here."
_NO_RETURNS = "The return of each evaluation appears here, if the job asks for any."


class LearnersPage(DashboardComponent):
    """One browser's view: of the newest run, or of the one that was chosen."""

    def __init__(self, scheduler: Any, **options: Any) -> None:
        self._plugin = scheduler.plugins["dask-rl"]
        self._heading, self._health = html_part("heading"), html_part("health")
        self._events, self._overview = html_part("events"), html_part("overview")
        self._select = Select(title="Shown", value=_NEWEST, options=[(_NEWEST, "the newest")], width=280, name="select")
        self._select.stylesheets = [":host { font-size: 15px; } select { font-size: 15px; height: 34px; }"]
        self._select.on_change("value", lambda attribute, old, new: self.update())
        self._losses = LineChart("Losses", STEPS, "loss, mean over rows", _NO_LOSS, name="losses")
        self._rates = LineChart("Speed of each learner", _AGO, "steps per second", _NO_RATE, name="rates")
        self._shares = ShareChart("Where the time of the last minute went", _NO_SHARES, name="shares")
        self._returns = ReturnChart("Evaluation", _NO_RETURNS, name="returns")
        self._rates.figure.y_range.start = 0
        self._rows = (
            _beside(self._losses, self._rates),
            self._health,
            _beside(self._shares, self._returns),
            self._events,
        )
        top = row(self._heading, self._select, sizing_mode="stretch_width")
        self.root = column(top, *self._rows, self._overview, sizing_mode="stretch_width", spacing=8)

    def update(self) -> None:
        """Show what is known now."""
        entries, now = self._plugin.live_runs.entries(), time.monotonic()
        self._offer(entries)
        entry = next((each for each in entries if each.key == self._select.value), entries[0] if entries else None)
        _set(self._select, visible=len(entries) > 1)
        _set(self._overview, visible=len(entries) > 1)
        for part in self._rows:
            _set(part, visible=entry is not None)
        if entry is None:
            _set(self._heading, text=words.NOTHING_YET)
            return
        _set(self._heading, text=words.heading(entry, now))
        _set(self._health, text=tables.health_table(entry.group, now))
        _set(self._events, text=tables.event_log(entry.run, entry.group, now, time.time()))
        if self._overview.visible:
            _set(self._overview, text=tables.overview(entries, now))
        self._losses.show(series.losses(entry.run))
        self._rates.show(series.rates(entry.run, entry.group, now))
        self._shares.show(series.shares(entry.run, entry.group))
        self._returns.show(series.evaluations(entry.run))

    def _offer(self, entries: list[Entry]) -> None:
        options = [(_NEWEST, "the newest"), *((each.key, f"{each.name} ({each.key[:6]})") for each in entries)]
        if options != self._select.options:
            self._select.options = options


class LearnersPlot(DashboardComponent):
    """The newest run in a small space: its heading, its losses and its learners' speed."""

    def __init__(self, scheduler: Any, **options: Any) -> None:
        self._plugin = scheduler.plugins["dask-rl"]
        self._heading = html_part("heading")
        size: dict[str, Any] = {"sizing_mode": "stretch_both", "min_height": 170}
        self._losses = LineChart("Losses", STEPS, "loss", _NO_LOSS, name="losses", **size)
        self._rates = LineChart("Speed of each learner", _AGO, "steps/s", _NO_RATE, name="rates", **size)
        self._rates.figure.y_range.start = 0
        parts = (self._heading, *self._losses.parts, *self._rates.parts)
        self.root = column(*parts, sizing_mode=options.get("sizing_mode", "stretch_both"))

    def update(self) -> None:
        """Show what is known now."""
        entries, now = self._plugin.live_runs.entries(), time.monotonic()
        _set(self._heading, text=words.heading(entries[0], now) if entries else words.NOTHING_YET)
        run, group = (entries[0].run, entries[0].group) if entries else (None, None)
        self._losses.show(series.losses(run))
        self._rates.show(series.rates(run, group, now))


def _beside(*charts: Chart) -> Any:
    """Return charts side by side."""
    columns = [column(*chart.parts, sizing_mode="stretch_width") for chart in charts]
    return row(*columns, sizing_mode="stretch_width")


def _set(model: Any, **values: Any) -> None:
    """Set what has changed: only that is sent to the browser."""
    for name, value in values.items():
        if getattr(model, name) != value:
            setattr(model, name, value)


def learners_doc(scheduler: Any, extra: Any, doc: Any) -> None:
    """Fill a browser's document with the page."""
    page = LearnersPage(scheduler)
    page.update()
    add_periodic_callback(doc, page, UPDATE_MILLISECONDS)
    doc.title = "Dask: Learners"
    doc.add_root(page.root)
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)
    doc.theme = BOKEH_THEME


def add_to(scheduler: Any, plugin: Any) -> None:
    """Serve both beside Dask's own pages; does nothing where the scheduler has no dashboard."""
    served = scheduler.http_application.applications
    if not any(hasattr(app, "app_paths") for app in served):
        return
    pages = {"/learners": learners_doc, "/individual-learners": individual_doc(LearnersPlot, UPDATE_MILLISECONDS)}
    variables = template_variables(scheduler)  # the one of this scheduler, which its other pages use too
    if "learners" not in variables["pages"]:
        variables["pages"].insert(variables["pages"].index("info"), "learners")
        variables["plots"].append({"url": "individual-learners", "name": "Learners"})
        variables["plots"].sort(key=lambda plot: plot["name"])
    # JupyterLab finds the plots of the first application only: so there is a new one, with all pages.
    app = BokehApplication(
        {**applications, **pages}, scheduler, prefix=prefix_of(scheduler), template_variables=variables
    )
    app.initialize(IOLoop.current())
    app.start()
    served.insert(0, app)
    plugin.at_close(app.stop)
