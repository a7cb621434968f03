// Written by tests/tailwind.py: the styles of Tailwind's classes that pages, NiceGUI and Quasar name.
// In the browser Tailwind would read every page and make the same, after each change of it. Never edit by hand.
addStyle(`
/*! tailwindcss v4.1.13 | MIT License | https://tailwindcss.com */ @layer properties; @layer theme, base, components, utilities; @layer theme { :root, :host { --font-sans: ui-sans-serif, system-ui, sans-serif, 'Apple Color Emoji', 'Segoe UI Emoji', 'Segoe UI Symbol', 'Noto Color Emoji'; --font-mono: ui-monospace, SFMono-Regular, Menlo, Monaco, Consolas, 'Liberation Mono', 'Courier New', monospace; --color-amber-200: oklch(92.4% 0.12 95.746); --color-blue-50: oklch(97% 0.014 254.604); --color-gray-100: oklch(96.7% 0.003 264.542); --color-gray-200: oklch(92.8% 0.006 264.531); --color-gray-300: oklch(87.2% 0.01 258.338); --color-gray-500: oklch(55.1% 0.027 264.364); --color-neutral-700: oklch(37.1% 0 0); --color-neutral-800: oklch(26.9% 0 0); --color-black: #000; --color-white: #fff; --spacing: 0.25rem; --container-md: 28rem; --container-lg: 32rem; --container-xl: 36rem; --container-2xl: 42rem; --container-3xl: 48rem; --text-xs: 0.75rem; --text-xs--line-height: calc(1 / 0.75); --text-sm: 0.875rem; --text-sm--line-height: calc(1.25 / 0.875); --text-base: 1rem; --text-base--line-height: calc(1.5 / 1); --text-lg: 1.125rem; --text-lg--line-height: calc(1.75 / 1.125); --text-xl: 1.25rem; --text-xl--line-height: calc(1.75 / 1.25); --text-2xl: 1.5rem; --text-2xl--line-height: calc(2 / 1.5); --text-5xl: 3rem; --text-5xl--line-height: 1; --font-weight-medium: 500; --font-weight-semibold: 600; --font-weight-bold: 700; --leading-tight: 1.25; --radius-lg: 0.5rem; --ease-in-out: cubic-bezier(0.4, 0, 0.2, 1); --default-transition-duration: 150ms; --default-transition-timing-function: cubic-bezier(0.4, 0, 0.2, 1); --default-font-family: var(--font-sans); --default-mono-font-family: var(--font-mono) }
}
@layer base { *, ::after, ::before, ::backdrop, ::file-selector-button { box-sizing: border-box; margin: 0; padding: 0; border: 0 solid }
html, :host { line-height: 1.5; -webkit-text-size-adjust: 100%; tab-size: 4; font-family: var(--default-font-family, ui-sans-serif, system-ui, sans-serif, 'Apple Color Emoji', 'Segoe UI Emoji', 'Segoe UI Symbol', 'Noto Color Emoji'); font-feature-settings: var(--default-font-feature-settings, normal); font-variation-settings: var(--default-font-variation-settings, normal); -webkit-tap-highlight-color: transparent }
hr { height: 0; color: inherit; border-top-width: 1px }
abbr:where([title]) { -webkit-text-decoration: underline dotted; text-decoration: underline dotted }
h1, h2, h3, h4, h5, h6 { font-size: inherit; font-weight: inherit }
a { color: inherit; -webkit-text-decoration: inherit; text-decoration: inherit }
b, strong { font-weight: bolder }
code, kbd, samp, pre { font-family: var(--default-mono-font-family, ui-monospace, SFMono-Regular, Menlo, Monaco, Consolas, 'Liberation Mono', 'Courier New', monospace); font-feature-settings: var(--default-mono-font-feature-settings, normal); font-variation-settings: var(--default-mono-font-variation-settings, normal); font-size: 1em }
small { font-size: 80% }
sub, sup { font-size: 75%; line-height: 0; position: relative; vertical-align: baseline }
sub { bottom: -0.25em }
sup { top: -0.5em }
table { text-indent: 0; border-color: inherit; border-collapse: collapse }
:-moz-focusring { outline: auto }
progress { vertical-align: baseline }
summary { display: list-item }
ol, ul, menu { list-style: none }
img, svg, video, canvas, audio, iframe, embed, object { display: block; vertical-align: middle }
img, video { max-width: 100%; height: auto }
button, input, select, optgroup, textarea, ::file-selector-button { font: inherit; font-feature-settings: inherit; font-variation-settings: inherit; letter-spacing: inherit; color: inherit; border-radius: 0; background-color: transparent; opacity: 1 }
:where(select:is([multiple], [size])) optgroup { font-weight: bolder }
:where(select:is([multiple], [size])) optgroup option { padding-inline-start: 20px }
::file-selector-button { margin-inline-end: 4px }
::placeholder { opacity: 1 }
@supports (not (-webkit-appearance: -apple-pay-button))  or (contain-intrinsic-size: 1px) { ::placeholder { color: currentcolor; @supports (color: color-mix(in lab, red, red)) { color: color-mix(in oklab, currentcolor 50%, transparent) }
}
}
textarea { resize: vertical }
::-webkit-search-decoration { -webkit-appearance: none }
::-webkit-date-and-time-value { min-height: 1lh; text-align: inherit }
::-webkit-datetime-edit { display: inline-flex }
::-webkit-datetime-edit-fields-wrapper { padding: 0 }
::-webkit-datetime-edit, ::-webkit-datetime-edit-year-field, ::-webkit-datetime-edit-month-field, ::-webkit-datetime-edit-day-field, ::-webkit-datetime-edit-hour-field, ::-webkit-datetime-edit-minute-field, ::-webkit-datetime-edit-second-field, ::-webkit-datetime-edit-millisecond-field, ::-webkit-datetime-edit-meridiem-field { padding-block: 0 }
::-webkit-calendar-picker-indicator { line-height: 1 }
:-moz-ui-invalid { box-shadow: none }
button, input:where([type='button'], [type='reset'], [type='submit']), ::file-selector-button { appearance: button }
::-webkit-inner-spin-button, ::-webkit-outer-spin-button { height: auto }
[hidden]:where(:not([hidden='until-found'])) { display: none !important }
}
@layer utilities { .collapse { visibility: collapse }
.invisible { visibility: hidden }
.visible { visibility: visible }
.sr-only { position: absolute; width: 1px; height: 1px; padding: 0; margin: -1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; border-width: 0 }
.absolute { position: absolute }
.fixed { position: fixed }
.relative { position: relative }
.sticky { position: sticky }
.top-1 { top: calc(var(--spacing) * 1) }
.top-12 { top: calc(var(--spacing) * 12) }
.right-1 { right: calc(var(--spacing) * 1) }
.z-10 { z-index: 10 }
.order-last { order: 9999 }
.col-auto { grid-column: auto }
.container { width: 100%; @media (width >= 40rem) { max-width: 40rem }
@media (width >= 48rem) { max-width: 48rem }
@media (width >= 64rem) { max-width: 64rem }
@media (width >= 80rem) { max-width: 80rem }
@media (width >= 96rem) { max-width: 96rem }
}
.m-0 { margin: calc(var(--spacing) * 0) }
.m-90 { margin: calc(var(--spacing) * 90) }
.mx-2 { margin-inline: calc(var(--spacing) * 2) }
.mt-0\\.5 { margin-top: calc(var(--spacing) * 0.5) }
.mt-1 { margin-top: calc(var(--spacing) * 1) }
.mt-2 { margin-top: calc(var(--spacing) * 2) }
.mt-4 { margin-top: calc(var(--spacing) * 4) }
.mr-2 { margin-right: calc(var(--spacing) * 2) }
.mr-3 { margin-right: calc(var(--spacing) * 3) }
.ml-1 { margin-left: calc(var(--spacing) * 1) }
.ml-4 { margin-left: calc(var(--spacing) * 4) }
.ml-auto { margin-left: auto }
.block { display: block }
.contents { display: contents }
.flex { display: flex }
.grid { display: grid }
.hidden { display: none }
.inline { display: inline }
.inline-block { display: inline-block }
.inline-flex { display: inline-flex }
.table { display: table }
.size-1 { width: calc(var(--spacing) * 1); height: calc(var(--spacing) * 1) }
.size-2 { width: calc(var(--spacing) * 2); height: calc(var(--spacing) * 2) }
.size-3 { width: calc(var(--spacing) * 3); height: calc(var(--spacing) * 3) }
.size-4 { width: calc(var(--spacing) * 4); height: calc(var(--spacing) * 4) }
.size-5 { width: calc(var(--spacing) * 5); height: calc(var(--spacing) * 5) }
.size-6 { width: calc(var(--spacing) * 6); height: calc(var(--spacing) * 6) }
.size-7 { width: calc(var(--spacing) * 7); height: calc(var(--spacing) * 7) }
.h-1 { height: calc(var(--spacing) * 1) }
.h-10 { height: calc(var(--spacing) * 10) }
.h-52 { height: calc(var(--spacing) * 52) }
.h-\\[60vh\\] { height: 60vh }
.max-h-80 { max-height: calc(var(--spacing) * 80) }
.max-h-96 { max-height: calc(var(--spacing) * 96) }
.w-12 { width: calc(var(--spacing) * 12) }
.w-20 { width: calc(var(--spacing) * 20) }
.w-24 { width: calc(var(--spacing) * 24) }
.w-28 { width: calc(var(--spacing) * 28) }
.w-32 { width: calc(var(--spacing) * 32) }
.w-36 { width: calc(var(--spacing) * 36) }
.w-40 { width: calc(var(--spacing) * 40) }
.w-44 { width: calc(var(--spacing) * 44) }
.w-48 { width: calc(var(--spacing) * 48) }
.w-60 { width: calc(var(--spacing) * 60) }
.w-64 { width: calc(var(--spacing) * 64) }
.w-72 { width: calc(var(--spacing) * 72) }
.w-80 { width: calc(var(--spacing) * 80) }
.w-full { width: 100% }
.max-w-2xl { max-width: var(--container-2xl) }
.max-w-3xl { max-width: var(--container-3xl) }
.max-w-lg { max-width: var(--container-lg) }
.max-w-md { max-width: var(--container-md) }
.max-w-xl { max-width: var(--container-xl) }
.min-w-0 { min-width: calc(var(--spacing) * 0) }
.min-w-\\[12rem\\] { min-width: 12rem }
.min-w-\\[14rem\\] { min-width: 14rem }
.min-w-\\[18rem\\] { min-width: 18rem }
.shrink { flex-shrink: 1 }
.shrink-0 { flex-shrink: 0 }
.grow { flex-grow: 1 }
.basis-96 { flex-basis: calc(var(--spacing) * 96) }
.transform { transform: var(--tw-rotate-x,) var(--tw-rotate-y,) var(--tw-rotate-z,) var(--tw-skew-x,) var(--tw-skew-y,) }
.cursor-pointer { cursor: pointer }
.resize { resize: both }
.grid-cols-1 { grid-template-columns: repeat(1, minmax(0, 1fr)) }
.flex-col { flex-direction: column }
.flex-nowrap { flex-wrap: nowrap }
.flex-wrap { flex-wrap: wrap }
.content-center { align-content: center }
.items-baseline { align-items: baseline }
.items-center { align-items: center }
.items-end { align-items: flex-end }
.items-start { align-items: flex-start }
.items-stretch { align-items: stretch }
.justify-between { justify-content: space-between }
.justify-center { justify-content: center }
.justify-end { justify-content: flex-end }
.justify-start { justify-content: flex-start }
.gap-0 { gap: calc(var(--spacing) * 0) }
.gap-1 { gap: calc(var(--spacing) * 1) }
.gap-2 { gap: calc(var(--spacing) * 2) }
.gap-3 { gap: calc(var(--spacing) * 3) }
.gap-4 { gap: calc(var(--spacing) * 4) }
.gap-5 { gap: calc(var(--spacing) * 5) }
.gap-x-2 { column-gap: calc(var(--spacing) * 2) }
.gap-x-3 { column-gap: calc(var(--spacing) * 3) }
.gap-x-4 { column-gap: calc(var(--spacing) * 4) }
.gap-x-5 { column-gap: calc(var(--spacing) * 5) }
.gap-x-6 { column-gap: calc(var(--spacing) * 6) }
.gap-x-8 { column-gap: calc(var(--spacing) * 8) }
.gap-y-0 { row-gap: calc(var(--spacing) * 0) }
.gap-y-1 { row-gap: calc(var(--spacing) * 1) }
.gap-y-2 { row-gap: calc(var(--spacing) * 2) }
.divide-y { :where(& > :not(:last-child)) { --tw-divide-y-reverse: 0; border-bottom-style: var(--tw-border-style); border-top-style: var(--tw-border-style); border-top-width: calc(1px * var(--tw-divide-y-reverse)); border-bottom-width: calc(1px * calc(1 - var(--tw-divide-y-reverse))) }
}
.divide-gray-200 { :where(& > :not(:last-child)) { border-color: var(--color-gray-200) }
}
.self-center { align-self: center }
.self-end { align-self: flex-end }
.self-start { align-self: flex-start }
.self-stretch { align-self: stretch }
.truncate { overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
.overflow-auto { overflow: auto }
.overflow-hidden { overflow: hidden }
.overflow-x-auto { overflow-x: auto }
.overflow-y-auto { overflow-y: auto }
.rounded { border-radius: 0.25rem }
.rounded-full { border-radius: calc(infinity * 1px) }
.rounded-lg { border-radius: var(--radius-lg) }
.border { border-style: var(--tw-border-style); border-width: 1px }
.border-0 { border-style: var(--tw-border-style); border-width: 0px }
.border-t { border-top-style: var(--tw-border-style); border-top-width: 1px }
.border-b { border-bottom-style: var(--tw-border-style); border-bottom-width: 1px }
.border-l-4 { border-left-style: var(--tw-border-style); border-left-width: 4px }
.border-gray-200 { border-color: var(--color-gray-200) }
.border-gray-300 { border-color: var(--color-gray-300) }
.border-gray-500\\/20 { border-color: color-mix(in srgb, oklch(55.1% 0.027 264.364) 20%, transparent); @supports (color: color-mix(in lab, red, red)) { border-color: color-mix(in oklab, var(--color-gray-500) 20%, transparent) }
}
.bg-amber-200 { background-color: var(--color-amber-200) }
.bg-black { background-color: var(--color-black) }
.bg-blue-50 { background-color: var(--color-blue-50) }
.bg-gray-100 { background-color: var(--color-gray-100) }
.bg-gray-500 { background-color: var(--color-gray-500) }
.bg-white { background-color: var(--color-white) }
.p-0 { padding: calc(var(--spacing) * 0) }
.p-1 { padding: calc(var(--spacing) * 1) }
.p-2 { padding: calc(var(--spacing) * 2) }
.p-3 { padding: calc(var(--spacing) * 3) }
.p-4 { padding: calc(var(--spacing) * 4) }
.px-2 { padding-inline: calc(var(--spacing) * 2) }
.px-3 { padding-inline: calc(var(--spacing) * 3) }
.px-4 { padding-inline: calc(var(--spacing) * 4) }
.py-0\\.5 { padding-block: calc(var(--spacing) * 0.5) }
.py-1 { padding-block: calc(var(--spacing) * 1) }
.py-1\\.5 { padding-block: calc(var(--spacing) * 1.5) }
.py-2 { padding-block: calc(var(--spacing) * 2) }
.py-8 { padding-block: calc(var(--spacing) * 8) }
.py-10 { padding-block: calc(var(--spacing) * 10) }
.pe-1 { padding-inline-end: calc(var(--spacing) * 1) }
.pr-12 { padding-right: calc(var(--spacing) * 12) }
.pl-1 { padding-left: calc(var(--spacing) * 1) }
.pl-4 { padding-left: calc(var(--spacing) * 4) }
.pl-8 { padding-left: calc(var(--spacing) * 8) }
.text-center { text-align: center }
.text-left { text-align: left }
.text-right { text-align: right }
.text-2xl { font-size: var(--text-2xl); line-height: var(--tw-leading, var(--text-2xl--line-height)) }
.text-5xl { font-size: var(--text-5xl); line-height: var(--tw-leading, var(--text-5xl--line-height)) }
.text-base { font-size: var(--text-base); line-height: var(--tw-leading, var(--text-base--line-height)) }
.text-lg { font-size: var(--text-lg); line-height: var(--tw-leading, var(--text-lg--line-height)) }
.text-sm { font-size: var(--text-sm); line-height: var(--tw-leading, var(--text-sm--line-height)) }
.text-xl { font-size: var(--text-xl); line-height: var(--tw-leading, var(--text-xl--line-height)) }
.text-xs { font-size: var(--text-xs); line-height: var(--tw-leading, var(--text-xs--line-height)) }
.leading-tight { --tw-leading: var(--leading-tight); line-height: var(--leading-tight) }
.font-bold { --tw-font-weight: var(--font-weight-bold); font-weight: var(--font-weight-bold) }
.font-medium { --tw-font-weight: var(--font-weight-medium); font-weight: var(--font-weight-medium) }
.font-semibold { --tw-font-weight: var(--font-weight-semibold); font-weight: var(--font-weight-semibold) }
.break-words { overflow-wrap: break-word }
.break-all { word-break: break-all }
.whitespace-nowrap { white-space: nowrap }
.whitespace-pre { white-space: pre }
.whitespace-pre-wrap { white-space: pre-wrap }
.text-black { color: var(--color-black) }
.text-inherit { color: inherit }
.text-white { color: var(--color-white) }
.italic { font-style: italic }
.tabular-nums { --tw-numeric-spacing: tabular-nums; font-variant-numeric: var(--tw-ordinal,) var(--tw-slashed-zero,) var(--tw-numeric-figure,) var(--tw-numeric-spacing,) var(--tw-numeric-fraction,) }
.no-underline { text-decoration-line: none }
.underline { text-decoration-line: underline }
.opacity-40 { opacity: 40% }
.opacity-60 { opacity: 60% }
.opacity-70 { opacity: 70% }
.opacity-80 { opacity: 80% }
.opacity-90 { opacity: 90% }
.shadow { --tw-shadow: 0 1px 3px 0 var(--tw-shadow-color, rgb(0 0 0 / 0.1)), 0 1px 2px -1px var(--tw-shadow-color, rgb(0 0 0 / 0.1)); box-shadow: var(--tw-inset-shadow), var(--tw-inset-ring-shadow), var(--tw-ring-offset-shadow), var(--tw-ring-shadow), var(--tw-shadow) }
.shadow-lg { --tw-shadow: 0 10px 15px -3px var(--tw-shadow-color, rgb(0 0 0 / 0.1)), 0 4px 6px -4px var(--tw-shadow-color, rgb(0 0 0 / 0.1)); box-shadow: var(--tw-inset-shadow), var(--tw-inset-ring-shadow), var(--tw-ring-offset-shadow), var(--tw-ring-shadow), var(--tw-shadow) }
.outline { outline-style: var(--tw-outline-style); outline-width: 1px }
.blur { --tw-blur: blur(8px); filter: var(--tw-blur,) var(--tw-brightness,) var(--tw-contrast,) var(--tw-grayscale,) var(--tw-hue-rotate,) var(--tw-invert,) var(--tw-saturate,) var(--tw-sepia,) var(--tw-drop-shadow,) }
.filter { filter: var(--tw-blur,) var(--tw-brightness,) var(--tw-contrast,) var(--tw-grayscale,) var(--tw-hue-rotate,) var(--tw-invert,) var(--tw-saturate,) var(--tw-sepia,) var(--tw-drop-shadow,) }
.transition { transition-property: color, background-color, border-color, outline-color, text-decoration-color, fill, stroke, --tw-gradient-from, --tw-gradient-via, --tw-gradient-to, opacity, box-shadow, transform, translate, scale, rotate, filter, -webkit-backdrop-filter, backdrop-filter, display, content-visibility, overlay, pointer-events; transition-timing-function: var(--tw-ease, var(--default-transition-timing-function)); transition-duration: var(--tw-duration, var(--default-transition-duration)) }
.ease-in-out { --tw-ease: var(--ease-in-out); transition-timing-function: var(--ease-in-out) }
.select-all { -webkit-user-select: all; user-select: all }
.max-lg\\:hidden { @media (width < 64rem) { display: none }
}
.max-sm\\:w-full { @media (width < 40rem) { width: 100% }
}
.max-sm\\:grow { @media (width < 40rem) { flex-grow: 1 }
}
.sm\\:max-w-md { @media (width >= 40rem) { max-width: var(--container-md) }
}
.sm\\:grow { @media (width >= 40rem) { flex-grow: 1 }
}
.sm\\:basis-40 { @media (width >= 40rem) { flex-basis: calc(var(--spacing) * 40) }
}
.sm\\:grid-cols-2 { @media (width >= 40rem) { grid-template-columns: repeat(2, minmax(0, 1fr)) }
}
.sm\\:p-4 { @media (width >= 40rem) { padding: calc(var(--spacing) * 4) }
}
.md\\:w-2\\/3 { @media (width >= 48rem) { width: calc(2/3 * 100%) }
}
.md\\:grid-cols-2 { @media (width >= 48rem) { grid-template-columns: repeat(2, minmax(0, 1fr)) }
}
.lg\\:sticky { @media (width >= 64rem) { position: sticky }
}
.lg\\:top-16 { @media (width >= 64rem) { top: calc(var(--spacing) * 16) }
}
.lg\\:col-span-2 { @media (width >= 64rem) { grid-column: span 2 / span 2 }
}
.lg\\:col-span-3 { @media (width >= 64rem) { grid-column: span 3 / span 3 }
}
.lg\\:hidden { @media (width >= 64rem) { display: none }
}
.lg\\:grid-cols-2 { @media (width >= 64rem) { grid-template-columns: repeat(2, minmax(0, 1fr)) }
}
.lg\\:grid-cols-5 { @media (width >= 64rem) { grid-template-columns: repeat(5, minmax(0, 1fr)) }
}
.lg\\:grid-cols-\\[minmax\\(0\\,1fr\\)_23rem\\] { @media (width >= 64rem) { grid-template-columns: minmax(0,1fr) 23rem }
}
.xl\\:grid-cols-3 { @media (width >= 80rem) { grid-template-columns: repeat(3, minmax(0, 1fr)) }
}
.dark\\:divide-neutral-700 { &:where(body.body--dark, body.body--dark *) { :where(& > :not(:last-child)) { border-color: var(--color-neutral-700) }
}
}
.dark\\:border-neutral-700 { &:where(body.body--dark, body.body--dark *) { border-color: var(--color-neutral-700) }
}
.dark\\:bg-neutral-800 { &:where(body.body--dark, body.body--dark *) { background-color: var(--color-neutral-800) }
}
}
@property --tw-rotate-x { syntax: "*"; inherits: false }
@property --tw-rotate-y { syntax: "*"; inherits: false }
@property --tw-rotate-z { syntax: "*"; inherits: false }
@property --tw-skew-x { syntax: "*"; inherits: false }
@property --tw-skew-y { syntax: "*"; inherits: false }
@property --tw-divide-y-reverse { syntax: "*"; inherits: false; initial-value: 0 }
@property --tw-border-style { syntax: "*"; inherits: false; initial-value: solid }
@property --tw-leading { syntax: "*"; inherits: false }
@property --tw-font-weight { syntax: "*"; inherits: false }
@property --tw-ordinal { syntax: "*"; inherits: false }
@property --tw-slashed-zero { syntax: "*"; inherits: false }
@property --tw-numeric-figure { syntax: "*"; inherits: false }
@property --tw-numeric-spacing { syntax: "*"; inherits: false }
@property --tw-numeric-fraction { syntax: "*"; inherits: false }
@property --tw-shadow { syntax: "*"; inherits: false; initial-value: 0 0 #0000 }
@property --tw-shadow-color { syntax: "*"; inherits: false }
@property --tw-shadow-alpha { syntax: "<percentage>"; inherits: false; initial-value: 100% }
@property --tw-inset-shadow { syntax: "*"; inherits: false; initial-value: 0 0 #0000 }
@property --tw-inset-shadow-color { syntax: "*"; inherits: false }
@property --tw-inset-shadow-alpha { syntax: "<percentage>"; inherits: false; initial-value: 100% }
@property --tw-ring-color { syntax: "*"; inherits: false }
@property --tw-ring-shadow { syntax: "*"; inherits: false; initial-value: 0 0 #0000 }
@property --tw-inset-ring-color { syntax: "*"; inherits: false }
@property --tw-inset-ring-shadow { syntax: "*"; inherits: false; initial-value: 0 0 #0000 }
@property --tw-ring-inset { syntax: "*"; inherits: false }
@property --tw-ring-offset-width { syntax: "<length>"; inherits: false; initial-value: 0px }
@property --tw-ring-offset-color { syntax: "*"; inherits: false; initial-value: #fff }
@property --tw-ring-offset-shadow { syntax: "*"; inherits: false; initial-value: 0 0 #0000 }
@property --tw-outline-style { syntax: "*"; inherits: false; initial-value: solid }
@property --tw-blur { syntax: "*"; inherits: false }
@property --tw-brightness { syntax: "*"; inherits: false }
@property --tw-contrast { syntax: "*"; inherits: false }
@property --tw-grayscale { syntax: "*"; inherits: false }
@property --tw-hue-rotate { syntax: "*"; inherits: false }
@property --tw-invert { syntax: "*"; inherits: false }
@property --tw-opacity { syntax: "*"; inherits: false }
@property --tw-saturate { syntax: "*"; inherits: false }
@property --tw-sepia { syntax: "*"; inherits: false }
@property --tw-drop-shadow { syntax: "*"; inherits: false }
@property --tw-drop-shadow-color { syntax: "*"; inherits: false }
@property --tw-drop-shadow-alpha { syntax: "<percentage>"; inherits: false; initial-value: 100% }
@property --tw-drop-shadow-size { syntax: "*"; inherits: false }
@property --tw-ease { syntax: "*"; inherits: false }
@layer properties { @supports ((-webkit-hyphens: none) and (not (margin-trim: inline))) or ((-moz-orient: inline) and (not (color:rgb(from red r g b)))) { *, ::before, ::after, ::backdrop { --tw-rotate-x: initial; --tw-rotate-y: initial; --tw-rotate-z: initial; --tw-skew-x: initial; --tw-skew-y: initial; --tw-divide-y-reverse: 0; --tw-border-style: solid; --tw-leading: initial; --tw-font-weight: initial; --tw-ordinal: initial; --tw-slashed-zero: initial; --tw-numeric-figure: initial; --tw-numeric-spacing: initial; --tw-numeric-fraction: initial; --tw-shadow: 0 0 #0000; --tw-shadow-color: initial; --tw-shadow-alpha: 100%; --tw-inset-shadow: 0 0 #0000; --tw-inset-shadow-color: initial; --tw-inset-shadow-alpha: 100%; --tw-ring-color: initial; --tw-ring-shadow: 0 0 #0000; --tw-inset-ring-color: initial; --tw-inset-ring-shadow: 0 0 #0000; --tw-ring-inset: initial; --tw-ring-offset-width: 0px; --tw-ring-offset-color: #fff; --tw-ring-offset-shadow: 0 0 #0000; --tw-outline-style: solid; --tw-blur: initial; --tw-brightness: initial; --tw-contrast: initial; --tw-grayscale: initial; --tw-hue-rotate: initial; --tw-invert: initial; --tw-opacity: initial; --tw-saturate: initial; --tw-sepia: initial; --tw-drop-shadow: initial; --tw-drop-shadow-color: initial; --tw-drop-shadow-alpha: 100%; --tw-drop-shadow-size: initial; --tw-ease: initial }
}
}
`);
