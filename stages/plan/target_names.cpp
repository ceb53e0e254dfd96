#include "stages/plan/target_names.hpp"

#include "core/containers/dcp/directory.hpp"
#include "core/formats/format.hpp"
#include "core/mapping/maps/map_library.hpp"
#include "stages/plan/source/names/kept_tensors.hpp"
#include "stages/plan/source/names/mlite_keys.hpp"
#include "stages/plan/source/names/mlite_options.hpp"

namespace reshard {
namespace {

/// The map that the job names, or the one of all targets of its format.
struct NamesChoice {
  std::string_view key;
  std::string map;
};

NamesChoice names_choice(PlanRequest const& request) {
  std::string_view const own = format_of(request.target.format).names_map();
  if (!own.empty()) return {"[target] format", std::string(own)};
  return {"[target] map", request.options.dcp.map};
}

/// Options of maps of names alone: whether their names are written, and for how many pipeline
/// stages.
constexpr char const* written = "written";
constexpr char const* stages = "stages";

void refuse_layout(PlanRequest const& request, std::string const& map) {
  for (MeshAxis const& axis : request.target.mesh.axes())
    if (axis.size > 1)
      fail(
          ErrorKind::usage,
          "[target] layout.{} = {}: the names of {} are the same for every layout. Remove the key; "
          "target.chunks says how tensors are cut.",
          axis.name, axis.size, map);
}

/// torch.save's bytes of the number 0.
std::string saved_zero() {
  pickle::Document document;
  document.root = document.add_int(0);
  return dcp::torch_file_bytes(document, "archive");
}

/// Megatron Lite counts layers in each stage and experts in each rank; its loader asks for `step`.
void add_mlite(TargetNames& names, Model const& model, PlanRequest const& request) {
  if (request.target.mesh.size("vpp") > 1)
    fail(ErrorKind::usage,
         "[target] layout.vpp = {}: Megatron Lite has one model chunk for each pipeline stage. Set "
         "it to 1.",
         request.target.mesh.size("vpp"));
  names.options = mlite_target_options(names.map, model, request.target.mesh);
  names.options[stages] = Json(static_cast<Index>(request.target.pipeline.ranks));
  names.key = [chunks = pipeline_chunks(request.target.pipeline)](std::string const& name) {
    return mlite_key(name, chunks);
  };
  names.objects.emplace_back("step", saved_zero());
}

}  // namespace

std::optional<TargetNames> target_names(SourceModel const& read, Model const& model,
                                        PlanRequest const& request) {
  auto const [key, map] = names_choice(request);
  if (map.empty()) return std::nullopt;
  TargetNames names{request.read.library.named(key, map)};
  MapFile const& family = *read.names.maps.family;
  bool const alone = names.map.axes.empty();
  if (alone) check_names_of(key, names.map, family);
  if (!alone && names.map.model_types != family.model_types)
    fail(ErrorKind::usage,
         "{} = \"{}\": it describes another family than the source, whose map is {}. Name that "
         "one, or a map that has only names.",
         key, map, family.name);
  if (alone && has_mlite_names(names.map))
    add_mlite(names, model, request);
  else
    refuse_layout(request, map);
  if (alone) names.options[written] = Json(1);
  add_kept(family, names.map);
  return names;
}

}  // namespace reshard
