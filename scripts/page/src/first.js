// Runs before anything is painted: the language that was chosen last, else that of the report, else the reader's.
let chosen = '';
try {
  chosen = localStorage.getItem('precision_tool.language') ?? '';
} catch {
  // a page that may keep nothing
}
const isChinese = (chosen || document.documentElement.dataset.language || navigator.language || 'en').toLowerCase().startsWith('zh');
document.documentElement.lang = isChinese ? 'zh-CN' : 'en';
// The page fills the window; without scripts its text is as long as it is.
document.documentElement.classList.add('is-scripted');
