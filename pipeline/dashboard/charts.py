"""The page's charts: Bokeh figures, each with its source, and a line that says what will appear while there is none."""

from typing import Any

from bokeh.models import ColumnDataSource, FactorRange, HoverTool, NumeralTickFormatter, Range1d, Title
from bokeh.plotting import figure

from .html_part import html_part
from .learner_record import PARTS
from .series import Columns

STEPS = "gradient step"
_LETTERS = "15px"
_PARTS = {"data_wait_seconds": "waiting for data", "compute_seconds": "computing", "collective_seconds": "exchanging"}
_PART_COLOURS = ("#e69f00", "#0072b2", "#56b4e9", "#e4e4e4")
_OTHER = "between updates"


class Chart:
    """A figure whose source is filled anew where its columns have changed."""

    def __init__(self, title: str, x: str, y: str, empty: str, columns: Columns, **options: Any) -> None:
        self.source = ColumnDataSource(columns)
        self._columns = columns
        settings: dict[str, Any] = {
            "height": 300,
            "sizing_mode": "stretch_width",
            "tools": "pan,box_zoom,wheel_zoom,reset,save",
        }
        self.figure = figure(x_axis_label=x, y_axis_label=y, toolbar_location="right", **(settings | options))
        self.figure.add_layout(Title(text=title, text_font_size="17px", text_color="#1a1a1a"), "above")
        self.figure.toolbar.logo = None
        self.figure.toolbar.autohide = True
        self.figure.toolbar.active_drag = None
        self.figure.outline_line_color = "#bbbbbb"
        self.figure.background_fill_color = "#ffffff"
        self.figure.grid.grid_line_color = "#e6e6e6"
        for axis in self.figure.axis:
            axis.axis_label_text_font_size = axis.major_label_text_font_size = _LETTERS
            axis.axis_label_text_font_style = "normal"
            axis.axis_label_text_color = axis.major_label_text_color = "#1a1a1a"
        if x == STEPS:
            self.figure.xaxis.ticker.min_interval = 1
            self.figure.xaxis.formatter = NumeralTickFormatter(format="0,0")
        said = f"<h2>{title}</h2><p class=empty>{empty}</p>"
        self._empty = html_part(text=said, visible=False)
        self.parts = self.figure, self._empty
        """One of which is seen at a time."""

    def show(self, columns: Columns) -> None:
        """Draw these columns."""
        if columns != self._columns:
            self._columns = columns
            self.source.data = columns
        is_empty = not any(len(values) for values in columns.values())
        if self._empty.visible != is_empty:
            self._empty.visible, self.figure.visible = is_empty, not is_empty

    def _place_legend(self) -> None:
        legend = self.figure.legend[0]
        legend.label_text_font_size = _LETTERS
        legend.label_text_color = "#1a1a1a"
        legend.border_line_color = None
        legend.background_fill_alpha = 0.7
        legend.padding = legend.margin = 4
        legend.orientation = "horizontal"
        self.figure.add_layout(legend, "above")


class LineChart(Chart):
    """Lines by label."""

    def __init__(self, title: str, x: str, y: str, empty: str, **options: Any) -> None:
        columns: Columns = {name: [] for name in ("xs", "ys", "label", "colour", "dash")}
        super().__init__(title, x, y, empty, columns, **options)
        style: dict[str, Any] = {
            "line_color": "colour",
            "line_dash": "dash",
            "line_width": 2.5,
            "legend_field": "label",
        }
        lines = self.figure.multi_line("xs", "ys", source=self.source, **style)
        tips = [("", "@label"), (x, "$data_x{0,0.[00]}"), (y, "$data_y{0,0.[0000]}")]
        self.figure.add_tools(HoverTool(renderers=[lines], tooltips=tips))
        self.figure.yaxis.formatter.use_scientific = False
        self._place_legend()


class ShareChart(Chart):
    """Stacked percentages by learner."""

    def __init__(self, title: str, empty: str, **options: Any) -> None:
        names = (*PARTS, "other")
        columns: Columns = {name: [] for name in ("learner", *names)}
        self._learners = FactorRange()
        ranges: dict[str, Any] = {"x_range": self._learners, "y_range": Range1d(0, 100)}
        super().__init__(title, "rank of the learner", "share of time (%)", empty, columns, **ranges, **options)
        labels = [*_PARTS.values(), _OTHER]
        style: dict[str, Any] = {
            "x": "learner",
            "width": 0.6,
            "color": _PART_COLOURS,
            "legend_label": labels,
            "line_color": "#ffffff",
        }
        bars = self.figure.vbar_stack(names, source=self.source, **style)
        tips = [("", "@learner"), *((label, f"@{name}{{0.0}} %") for name, label in zip(names, labels, strict=True))]
        self.figure.add_tools(HoverTool(renderers=bars, tooltips=tips))
        self.figure.xgrid.grid_line_color = None
        self._place_legend()

    def show(self, columns: Columns) -> None:
        """Draw these columns."""
        if list(self._learners.factors) != columns["learner"]:
            self._learners.factors = columns["learner"]
        super().show(columns)


class ReturnChart(Chart):
    """Mean returns with their standard errors."""

    def __init__(self, title: str, empty: str, **options: Any) -> None:
        columns: Columns = {name: [] for name in ("step", "mean", "lower", "upper", "label", "colour")}
        super().__init__(title, STEPS, "return of an episode", empty, columns, **options)
        ends = {"x0": "step", "x1": "step", "y0": "lower", "y1": "upper"}
        self.figure.segment(**ends, source=self.source, line_color="colour", line_width=2.5)
        style: dict[str, Any] = {"size": 9, "color": "colour", "legend_field": "label"}
        points = self.figure.scatter("step", "mean", source=self.source, **style)
        tips = [("", "@label"), ("step", "@step{0,0}"), ("mean", "@mean{0,0.00}"), ("from", "@lower{0,0.00}")]
        self.figure.add_tools(HoverTool(renderers=[points], tooltips=[*tips, ("to", "@upper{0,0.00}")]))
        self._place_legend()
