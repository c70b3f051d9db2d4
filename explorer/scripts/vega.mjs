// One script of what draws pictures, so that no page loads anything from elsewhere. Expressions are interpreted, never
// compiled: the content security policy of the site has no 'unsafe-eval'.
export { View, parse } from "vega";
export { compile } from "vega-lite";
export { expressionInterpreter } from "vega-interpreter";
export { Handler } from "vega-tooltip";
