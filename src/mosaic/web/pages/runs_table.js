// The table of runs: columns on wide screens, cards on narrow ones. One component with templates that are compiled once,
// so that a change patches what is drawn; slots given from Python would make each cell anew, under people's fingers.
const STATE = `
  <span v-if="props.row.kind === 'run'" class="mosaic-state" :style="{background: props.row.colour}"
        :title="props.row.reason" :data-state="props.row.state">
    <i class="q-icon notranslate material-icons" aria-hidden="true">{{ props.row.icon }}</i>{{ props.row.word }}
  </span>
  <span v-else class="text-sm">{{ props.row.word }}</span>`;
const NAME = `
  <a v-if="props.row.kind === 'run'" :href="props.row.href" class="mosaic-run-link" :class="{'pl-4': props.row.inside}"
     :title="props.row.id">{{ props.row.name }}</a>
  <q-btn v-else flat dense no-caps class="text-left" :icon="props.row.open ? 'expand_more' : 'chevron_right'"
     :aria-expanded="props.row.open ? 'true' : 'false'" :label="props.row.name"
     @click.stop="$emit('toggle', props.row.key)"></q-btn>`;
const AGENT = `
  <div class="mosaic-cut" :title="props.row.agent">{{ props.row.agent || '–' }}</div>
  <div class="mosaic-cut mosaic-small" :title="props.row.worker">{{ props.row.worker }}</div>`;
const PROGRESS = `
  <div v-if="props.row.fraction !== null" class="mosaic-progress" role="progressbar" aria-valuemin="0" aria-valuemax="1"
     :aria-valuenow="props.row.fraction" :aria-label="props.row.progress">
    <div :style="{width: 100 * props.row.fraction + '%'}"></div>
  </div>
  <div class="mosaic-small">{{ props.row.progress }}<span v-if="props.row.eta"> · {{ props.row.eta }}</span></div>`;
const RETURN = `
  <div class="flex items-center gap-2 no-wrap">
    <span class="mosaic-number">{{ props.row.return }}</span>
    <svg v-if="props.row.spark" :width="sparkWidth" :height="sparkHeight" :viewBox="'0 0 ' + sparkWidth + ' ' + sparkHeight"
         role="img" aria-label="returns so far" class="mosaic-spark">
      <polyline :points="props.row.spark" fill="none" stroke="currentColor" stroke-width="1.5"
                stroke-linejoin="round"></polyline>
    </svg>
  </div>`;
const AGE = `<span :title="props.row.created">{{ props.row.age }}</span>`;
const CARD = `
  <div class="w-full p-1">
    <q-card flat bordered class="p-3" :class="{'mosaic-chosen': props.selected, 'ml-4': props.row.inside}">
      <div class="flex items-center gap-2 no-wrap">
        <q-checkbox v-model="props.selected" dense :aria-label="'Select ' + props.row.name"></q-checkbox>
        <div class="grow min-w-0 truncate font-medium">${NAME}</div>
        ${STATE}
      </div>
      <div class="mt-1 flex gap-x-3 gap-y-0 text-sm">
        <span class="font-medium">{{ props.row.algo }}</span><span>{{ props.row.env }}</span>
        <span>seed {{ props.row.seed }}</span><span>{{ props.row.mode }}</span>
        <span v-if="props.row.agent">agent {{ props.row.agent }}</span>
        <span v-if="props.row.gpu !== '–'">GPU {{ props.row.gpu }}</span>
      </div>
      <div class="mt-2">${PROGRESS}</div>
      <div class="mt-1 flex items-center justify-between text-sm no-wrap">
        ${RETURN}<span>{{ props.row.sps }} steps/s</span>${AGE}
      </div>
      <div v-if="props.row.state === 'FAILED' && props.row.reason" class="mosaic-small mt-1 break-words">
        {{ props.row.reason }}</div>
    </q-card>
  </div>`;

// Columns that show more than a word; the others are drawn by Quasar.
const CELLS = { state: STATE, name: NAME, agent: AGENT, progress: PROGRESS, return: RETURN };
const cells = Object.entries(CELLS).map(
  ([name, cell]) =>
    `<template v-slot:body-cell-${name}="props"><td class="text-left mosaic-cell-${name}">${cell}</td></template>`
);

// So many fill a screen; the others are drawn when these are seen.
const FIRST_ROWS = 25;

export default {
  emits: ["toggle"],
  props: { rows: Array, sparkWidth: Number, sparkHeight: Number },
  data: () => ({ isSeen: false }),
  mounted() {
    requestAnimationFrame(() => setTimeout(() => (this.isSeen = true)));
  },
  template: `
    <q-table ref="qRef" :rows="isSeen ? rows : rows.slice(0, ${FIRST_ROWS})">
      <template v-slot:header-selection="props">
        <q-checkbox v-model="props.selected" dense aria-label="Select all on this page"></q-checkbox>
      </template>
      <template v-slot:body-selection="props">
        <q-checkbox v-model="props.selected" dense :aria-label="'Select ' + props.row.name"></q-checkbox>
      </template>
      ${cells.join("")}
      <template v-slot:body-cell-age="props"><td class="text-right mosaic-cell-age">${AGE}</td></template>
      <template v-slot:item="props">${CARD}</template>
    </q-table>`,
};
