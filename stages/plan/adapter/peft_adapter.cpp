#include "stages/plan/adapter/peft_adapter.hpp"

#include "core/base/error.hpp"
#include "stages/plan/adapter/adapter_source.hpp"
#include "stages/plan/source/catalog/source_catalog.hpp"

namespace reshard {

SourceModel peft_adapter(Checkpoint const& adapter, SourceModel const& base,
                         huggingface::LoraConfig const& config,
                         std::function<bool(std::string_view)> const& has) {
  SourceModel result;
  result.facts.view = adapter.format->view(adapter, "");
  if (!holds_adapter(adapter, result.facts.view))
    fail(ErrorKind::source,
         "{}: holds tensors that are not of an adapter (LoRA). Name the folder of the adapter.",
         adapter.place);
  std::vector<MapAdapter> const& forms = base.names.maps.core.adapters;
  AdapterNames const names = adapter_names(adapter, result.facts.view, forms, config.parameters());
  result.model = std::make_unique<Model>(*base.model);
  result.model->set_adapter_forms(forms);
  SideOptions options;
  options.has = [&](std::string_view name) {
    return has_adapter_of(result.facts.view, names, adapter_form(forms, names.form), name, has);
  };
  StoredShares const shares(adapter, result.facts.view, {});
  MapFile const& family = *base.names.maps.family;
  add_adapters(*result.model, Side(*result.model, family, options),
               adaptable_weights(base.names.maps, true), names, shares, adapter, &config);
  options.adapter = names.form;
  Side const side(*result.model, family, std::move(options));
  CatalogChoice choice{side, family.name};
  choice.partial = true;
  result.stored.catalog =
      source_catalog(*result.model, side, adapter, result.facts.view, {}, choice).catalog;
  return result;
}

}  // namespace reshard
