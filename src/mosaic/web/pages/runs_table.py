"""The table of runs as Quasar draws it: wide screens get columns, narrow ones cards. All texts are escaped by Vue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nicegui import events, ui

from mosaic.web.run_rows import SPARK_HEIGHT, SPARK_WIDTH

_COLUMNS = (
    ("state", "State", "left"),
    ("name", "Run", "left"),
    ("mode", "Mode", "left"),
    ("algo", "Algorithm", "left"),
    ("env", "Environment", "left"),
    ("seed", "Seed", "right"),
    ("agent", "Agent, worker", "left"),
    ("progress", "Progress", "left"),
    ("return", "Return", "left"),
    ("sps", "Steps/s", "right"),
    ("age", "Age", "right"),
    ("gpu", "GPU", "left"),
)

_STATE = """
<span v-if="props.row.kind === 'run'" class="mosaic-state" :style="{background: props.row.colour}"
      :title="props.row.reason" :data-state="props.row.state">
  <q-icon :name="props.row.icon" aria-hidden="true"></q-icon>{{ props.row.word }}
</span>
<span v-else class="text-sm">{{ props.row.word }}</span>
"""
_NAME = """
<a v-if="props.row.kind === 'run'" :href="props.row.href" class="mosaic-run-link" :class="{'pl-4': props.row.inside}"
   :title="props.row.id">{{ props.row.name }}</a>
<q-btn v-else flat dense no-caps class="text-left" :icon="props.row.open ? 'expand_more' : 'chevron_right'"
   :aria-expanded="props.row.open ? 'true' : 'false'" :label="props.row.name"
   @click.stop="() => $parent.$emit('toggle', props.row.key)"></q-btn>
"""
_AGENT = """
<div class="mosaic-cut" :title="props.row.agent">{{ props.row.agent || '–' }}</div>
<div class="mosaic-cut mosaic-small" :title="props.row.worker">{{ props.row.worker }}</div>
"""
_PROGRESS = """
<q-linear-progress v-if="props.row.fraction !== null" :value="props.row.fraction" rounded size="6px"
   :aria-label="props.row.progress"></q-linear-progress>
<div class="mosaic-small">{{ props.row.progress }}<span v-if="props.row.eta"> · {{ props.row.eta }}</span></div>
"""
_RETURN = f"""
<div class="flex items-center gap-2 no-wrap">
  <span class="mosaic-number">{{{{ props.row.return }}}}</span>
  <svg v-if="props.row.spark" width="{SPARK_WIDTH}" height="{SPARK_HEIGHT}" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}"
       role="img" aria-label="returns so far" class="mosaic-spark">
    <polyline :points="props.row.spark" fill="none" stroke="currentColor" stroke-width="1.5"
              stroke-linejoin="round"></polyline>
  </svg>
</div>
"""
_TICK = 'v-model="props.selected" dense'
_AGE = '<span :title="props.row.created">{{ props.row.age }}</span>'

_CARD = f"""
<div class="w-full p-1">
  <q-card flat bordered class="p-3" :class="{{'mosaic-chosen': props.selected, 'ml-4': props.row.inside}}">
    <div class="flex items-center gap-2 no-wrap">
      <q-checkbox v-model="props.selected" dense :aria-label="'Select ' + props.row.name"></q-checkbox>
      <div class="grow min-w-0 truncate font-medium">{_NAME}</div>
      {_STATE}
    </div>
    <div class="mt-1 flex gap-x-3 gap-y-0 text-sm">
      <span class="font-medium">{{{{ props.row.algo }}}}</span><span>{{{{ props.row.env }}}}</span>
      <span>seed {{{{ props.row.seed }}}}</span><span>{{{{ props.row.mode }}}}</span>
      <span v-if="props.row.agent">agent {{{{ props.row.agent }}}}</span>
      <span v-if="props.row.gpu !== '–'">GPU {{{{ props.row.gpu }}}}</span>
    </div>
    <div class="mt-2">{_PROGRESS}</div>
    <div class="mt-1 flex items-center justify-between text-sm no-wrap">
      {_RETURN}<span>{{{{ props.row.sps }}}} steps/s</span>{_AGE}
    </div>
    <div v-if="props.row.state === 'FAILED' && props.row.reason" class="mosaic-small mt-1 break-words">
      {{{{ props.row.reason }}}}</div>
  </q-card>
</div>
"""
STYLE = """
.mosaic-state { display: inline-flex; align-items: center; gap: 4px; color: white; border-radius: 999px;
  padding: 1px 8px 1px 6px; font-size: 12px; white-space: nowrap; }
.mosaic-run-link { color: inherit; font-weight: 500; text-decoration: underline; text-decoration-color: #0072B2;
  text-underline-offset: 2px; display: inline-block; vertical-align: middle; white-space: nowrap;
  max-width: 11rem; overflow: hidden; text-overflow: ellipsis; }
.mosaic-cut { max-width: 8.5rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.mosaic-small { font-size: 11px; opacity: 0.75; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.mosaic-number { min-width: 3.2rem; font-variant-numeric: tabular-nums; }
.mosaic-spark { color: #0072B2; flex: none; }
.body--dark .mosaic-spark { color: #56B4E9; }
.mosaic-chosen { outline: 2px solid #0072B2; }
.mosaic-runs td, .mosaic-runs th { padding-left: 8px !important; padding-right: 8px !important; }
.mosaic-runs .mosaic-cell-env { max-width: 11rem; overflow: hidden; text-overflow: ellipsis; }
"""


def table(chosen: Callable[[Sequence[dict[str, Any]]], None], toggled: Callable[[str], None]) -> ui.table:
    """An empty table; `chosen` hears of selections, `toggled` of groups that are opened or closed."""
    ui.add_css(STYLE)
    columns = [{"name": name, "label": label, "field": name, "align": align} for name, label, align in _COLUMNS]
    for column in columns:
        column["classes"] = f"mosaic-cell-{column['name']}"

    def selected(event: events.TableSelectionEventArguments) -> None:
        chosen(found.selected)

    found = ui.table(columns=columns, rows=[], row_key="id", selection="multiple", on_select=selected)
    found.classes("w-full mosaic-runs").props(
        'flat bordered dense hide-pagination :rows-per-page-options="[0]" :grid="Quasar.Screen.lt.md" '
        'aria-label="Runs" hide-selected-banner'
    )
    cells = {"state": _STATE, "name": _NAME, "agent": _AGENT, "progress": _PROGRESS, "return": _RETURN, "age": _AGE}
    for name, template in cells.items():
        found.add_slot(f"body-cell-{name}", f'<q-td :props="props">{template}</q-td>')
    found.add_slot("header-selection", f"<q-checkbox {_TICK} aria-label='Select all on this page'></q-checkbox>")
    found.add_slot("body-selection", f"<q-checkbox {_TICK} :aria-label=\"'Select ' + props.row.name\"></q-checkbox>")
    found.add_slot("item", _CARD)
    found.on("toggle", lambda event: toggled(str(event.args)))
    return found
