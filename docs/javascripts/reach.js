// Boxes that scroll can be reached by the keyboard, also those that a page shows later.
const reach = () => {
  for (const box of document.querySelectorAll(
    ".md-typeset__scrollwrap, .md-typeset pre > code, .md-typeset p:has(> picture)"))
    box.tabIndex = 0;
};
new MutationObserver(reach).observe(document.documentElement, { childList: true, subtree: true });
reach();
