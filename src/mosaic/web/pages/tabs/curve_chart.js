// A chart of a run's metric. As NiceGUI's own, but what it draws is taken out of Vue's hands first: watching every point
// of twenty curves costs more than drawing them.
import { echarts } from "nicegui-echart";
import { convertDynamicProperties } from "../../static/utils/dynamic_properties.js";

export default {
  template: "<div></div>",
  props: { options: Object, renderer: String },
  async mounted() {
    const size = () => ({ width: this.$el.offsetWidth, height: this.$el.offsetHeight });
    let drawn = size();
    // Every chart is measured before the first one is drawn: each would make the browser lay out the whole page again.
    await null;
    this.chart = echarts.init(this.$el, null, { renderer: this.renderer, ...drawn });
    this.update_chart();
    this.observer = new ResizeObserver(() => {
      const now = size();
      if (now.width === drawn.width && now.height === drawn.height) return; // told of the size at the start, too
      this.chart.resize((drawn = now));
    });
    this.observer.observe(this.$el);
  },
  beforeUnmount() {
    this.observer.disconnect();
    this.chart.dispose();
  },
  methods: {
    update_chart() {
      const options = Vue.toRaw(this.options);
      convertDynamicProperties(options, true);
      const before = this.chart.getOption()?.series?.length;
      this.chart.setOption(options, { notMerge: before !== options.series.length });
    },
  },
};
