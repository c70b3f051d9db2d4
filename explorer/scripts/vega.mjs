// One script that draws pictures, so that no page loads anything from elsewhere. Expressions are interpreted, since the
// pages' content security policy has no 'unsafe-eval'.
export { View, parse } from "vega";
export { compile } from "vega-lite";
export { expressionInterpreter } from "vega-interpreter";
export { Handler } from "vega-tooltip";
