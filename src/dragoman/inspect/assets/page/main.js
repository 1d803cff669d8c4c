// Assembles the page. The last part: it runs the others.

function links() {
  const list = make("nav", { "aria-label": "Sections" });
  const update = () =>
    list.replaceChildren(
      ...[...document.querySelectorAll("#sections > section")]
        .filter((part) => !part.hidden)
        .map((part) => make("a", { href: `#${part.id}` }, part.querySelector("h2").textContent)),
    );
  update();
  listeners.sentence.push(update);
  return list;
}

function build() {
  const side = make("aside");
  app.append(header(), box("layout", side, make("div", { id: "sections" })), tip);
  if (sentences.length) {
    translationSection();
    probabilitySection();
    attentionSection();
    stepSection();
    beamSection();
    rankingSection();
    if (sentences.some(({ masked }) => masked)) maskedSection();
  }
  if (data.statistics?.length) statisticsSection();
  if (data.positions) positionSection();
  if (sentences.length) showSentence(0);
  if (sentences.length > 1) side.append(sentencePicker());
  side.append(links());
}

build();
