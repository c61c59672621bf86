-- The health of a DynamoPipeline out of its own conditions, as kstatus reads them (docs/how-to/operate/argo-cd.md).
-- Healthy: this generation serves. Degraded: only a change of the spec, or of what is in its way, helps.

local function health(status, message)
  return { status = status, message = message }
end

local function condition(kind)
  for _, one in ipairs(obj.status.conditions) do
    if one.type == kind then
      return one
    end
  end
end

local function said(one)
  return one.reason .. ": " .. one.message
end

if obj.metadata.deletionTimestamp ~= nil then
  return health("Progressing", "being deleted")
end
if obj.status == nil or obj.status.conditions == nil then
  return health("Progressing", "no operator has looked at it yet")
end
if obj.status.observedGeneration ~= obj.metadata.generation then
  return health("Progressing", "no operator has looked at its last change yet")
end

local stalled, reconciling, ready = condition("Stalled"), condition("Reconciling"), condition("Ready")
if stalled ~= nil and stalled.status == "True" then
  return health("Degraded", said(stalled))
end
if reconciling ~= nil and reconciling.status == "True" then
  return health("Progressing", said(reconciling))
end
if ready == nil then
  return health("Progressing", "it doesn't say yet whether it is ready")
end
return health(ready.status == "True" and "Healthy" or "Progressing", said(ready))
