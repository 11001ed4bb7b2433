// The OpenAPI description as a page: a section for each route. All text is set as text.
const make = (name, text, ...children) => {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  made.append(...children);
  return made;
};

function resolved(whole, schema) {
  if (!schema) return {};
  return schema.$ref ? whole.components.schemas[schema.$ref.split("/").pop()] || {} : schema;
}

function kind(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(kind).join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items)}`;
  if (schema.enum || schema.const) return (schema.enum || [schema.const]).map((each) => JSON.stringify(each)).join(" or ");
  return schema.type || "anything";
}

function fields(whole, schema) {
  const found = resolved(whole, schema);
  const needed = new Set(found.required || []);
  return Object.entries(found.properties || {}).map(([name, each]) =>
    make("li", null, make("code", name), ` ${kind(each)}${needed.has(name) ? "" : ", optional"}${each.description ? ": " + each.description : ""}`));
}

const whole = await (await fetch("openapi.json")).json();
const main = document.getElementById("docs");
main.append(make("p", whole.info.description));
for (const [path, methods] of Object.entries(whole.paths)) {
  for (const [method, route] of Object.entries(methods)) {
    const section = make("section", null, make("h2", null, make("code", `${method.toUpperCase()} ${path}`)), make("p", route.description));
    const inputs = (route.parameters || []).map((each) =>
      make("li", null, make("code", each.name), ` ${kind(each.schema)}, in the ${each.in}${each.required ? "" : ", optional"}`));
    const body = route.requestBody && route.requestBody.content["application/json"].schema;
    if (body) inputs.push(...fields(whole, body));
    if (inputs.length) section.append(make("h3", "Takes"), make("ul", null, ...inputs));
    const answer = route.responses["200"] && route.responses["200"].content && route.responses["200"].content["application/json"];
    const outputs = answer ? fields(whole, answer.schema) : [];
    if (outputs.length) section.append(make("h3", "Answers"), make("ul", null, ...outputs));
    section.append(make("p", `Problems: ${Object.keys(route.responses).filter((code) => code >= "400").join(", ")}`));
    main.append(section);
  }
}
