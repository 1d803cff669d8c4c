// The header and the theme.

function header() {
  const model = data.model ?? {};
  const facts = [];
  if (model.architecture) facts.push(model.architecture);
  for (const side of ["encoder", "decoder"]) {
    const [layers, heads] = [model[`${side}_layers`], model[`${side}_heads`]];
    if (layers) facts.push(`${layers} ${side} ${layers > 1 ? "layers" : "layer"}${heads ? ` of ${heads} heads` : ""}`);
  }
  if (model.d_model) facts.push(`width ${model.d_model}`);
  if (model.search?.beam) facts.push(`beam ${model.search.beam}`);
  return make(
    "header",
    {},
    make("div", {}, make("h1", {}, model.name ?? document.title), make("p", { class: "note" }, facts.join(" · "))),
    themeButton(),
  );
}

function themeButton() {
  const themes = ["auto", "light", "dark"];
  const button = make("button", { id: "theme", type: "button", title: "Colour theme" });
  const set = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.textContent = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }[theme];
  };
  button.addEventListener("click", () => {
    set(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length]);
  });
  set("auto");
  return button;
}
