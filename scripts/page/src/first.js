// Runs before anything is painted: the language that was chosen last, else the reader's.
let chosen = '';
try {
  chosen = localStorage.getItem('precision_tool.language') ?? '';
} catch {
  // a page that may keep nothing
}
const isChinese = (chosen || navigator.language || 'en').toLowerCase().startsWith('zh');
document.documentElement.lang = isChinese ? 'zh-CN' : 'en';
