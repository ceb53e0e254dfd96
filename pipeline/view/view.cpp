#include "pipeline/view/view.hpp"

#include <algorithm>
#include <tuple>

#include "core/base/files/file.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/text/shown_name.hpp"
#include "core/transport/nccl/host_identity.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/job/key_places.hpp"
#include "pipeline/job/option_words.hpp"
#include "pipeline/job/plan_request.hpp"
#include "pipeline/run/planned_job.hpp"
#include "pipeline/run/report/report_parts.hpp"
#include "pipeline/version.hpp"
#include "pipeline/view/job_figures.hpp"
#include "pipeline/view/view_model.hpp"
#include "stages/plan/catalogue.hpp"
#include "stages/read/open_source.hpp"
#include "stages/write/leftovers.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

std::string inside(fs::path const& file, fs::path const& folder) {
  fs::path const relative = file.lexically_relative(folder);
  return relative.empty() || relative == "." || *relative.begin() == ".." ? file.filename().string()
                                                                          : relative.string();
}

void place(ViewOwner& owner, Mesh const& mesh, MeshPlace const& at) {
  owner.at = at;
  owner.label.clear();
  for (std::size_t axis = 0; axis < at.size(); ++axis)
    owner.label += fmt::format("{}{}{}", axis == 0 ? "" : " ", mesh.axes()[axis].name, at[axis]);
}

ViewSide side_of(Checkpoint const& source, fs::path const& path, std::string_view role) {
  ViewSide side;
  side.role = role;
  side.path = path.string();
  side.format = source.format->name();
  side.layout =
      fmt::format("{} {}", source.files.size(), source.files.size() == 1 ? "file" : "files");
  if (!source.shares.places.empty()) {
    side.mesh = source.shares.file_mesh;
    side.layout = source.shares.layout;
  }
  for (std::size_t f = 0; f < source.files.size(); ++f) {
    ViewOwner owner;
    owner.file = inside(source.files[f], path);
    owner.label = source.files[f].filename().string();
    side.owners.push_back(std::move(owner));
  }
  for (SharePlace const& share : source.shares.places)
    place(side.owners[share.file], side.mesh, share.file_at);
  return side;
}

ViewSide target_side(JobSpec const& job, JobPlan const& plan) {
  ViewSide side;
  side.role = "target";
  side.path = job.target.path;
  side.format = name(job.target.format);
  side.layout = fmt::format("{} {}", plan.files.size(), plan.files.size() == 1 ? "file" : "files");
  if (!plan.layout.empty()) {
    side.mesh = plan.file_mesh;
    side.layout = plan.layout;
  }
  for (TargetFile const& file : plan.files) {
    ViewOwner owner;
    owner.file = file.path.string();
    owner.label = file.path.filename().string();
    if (!file.at.empty()) place(owner, side.mesh, file.at);
    side.owners.push_back(std::move(owner));
  }
  return side;
}

std::string made_by() { return "reshard " + version_number(); }

std::string last_name(fs::path const& path) { return normal_path(path).filename().string(); }

LayoutView checkpoint_view(ViewQuery const& query, Comm const& comm) {
  together_seeing(comm, [&] { check_checkpoint_folder(query.path); });
  Checkpoint const source = open_source(query.path, comm);
  JobPlan plan;
  together_seeing(comm, [&] {
    with_option_words("--config", [&] {
      PlanRequest request = request_without_target(query.map, query.config, query.library);
      request.read.prefix = query.prefix;
      plan = catalogue_as_stored(source, request);
    });
  });
  LayoutView view;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    view.title = last_name(query.path);
    view.map = plan.map_name;
    view.stored_names = plan.stored_names;
    view.warnings = plan.warnings;
    if (!plan.listing.prefix_note.empty()) view.warnings.push_back(plan.listing.prefix_note);
    if (!source.run.newer_saves.empty() &&
        std::ranges::find(view.warnings, source.run.newer_saves) == view.warnings.end())
      view.warnings.push_back(source.run.newer_saves);
    view.sides.push_back(side_of(source, query.path, "checkpoint"));
    add_tensors(view, *plan.model, {&plan.source});
  });
  return view;
}

LayoutView job_view(ViewQuery const& query, Comm const& comm) {
  JobSpec const& job = *query.job;
  PlannedJob const planned = plan_job(job, query.library, query.ranks, comm);
  std::vector<std::string> hosts = comm.all_gather(host_name());
  if (comm.size() != planned.ranks) hosts.clear();
  LayoutView view;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    JobPlan const& plan = planned.plan;
    view.title = fmt::format("{} → {}", last_name(job.source.path), last_name(job.target.path));
    view.map = plan.map_name;
    view.stored_names = plan.stored_names;
    view.sides.push_back(side_of(planned.source, job.source.path, "source"));
    view.sides.push_back(target_side(job, plan));
    add_tensors(view, *plan.model, {&plan.source, &plan.target});
    view.flows = flows_of(plan.plan, plan.source);
    RunReport const report = report_of_plan(job, planned, comm);
    view.warnings = report.warnings;
    view.job = job_figures(report, round_terms(job, planned, comm), hosts, query.measured);
  });
  return view;
}

/// Places that a page must not be written into.
std::vector<fs::path> taken_places(ViewQuery const& query) {
  if (query.job) {
    std::vector<fs::path> places = places_of(query.job->target.path);
    places.emplace_back(query.job->source.path);
    return places;
  }
  if (query.compare) return {query.compare->a, query.compare->b};
  return {query.path};
}

/// With the names of their folders where their own are the same.
std::string pair_title(fs::path const& a, fs::path const& b) {
  std::string one = last_name(a);
  std::string other = last_name(b);
  auto const with_folder = [](fs::path const& path, std::string const& name) {
    return last_name(normal_path(path).parent_path()) + "/" + name;
  };
  if (one == other) std::tie(one, other) = std::pair(with_folder(a, one), with_folder(b, other));
  return fmt::format("{} ↔ {}", one, other);
}

/// The shown document, and its notes.
struct Shown {
  std::string title;
  std::string json;     ///< on rank 0
  std::string summary;  ///< a line, or ""
};

Shown shown_difference(CompareRequest const& request, Comm const& comm) {
  CompareReport report = compare_checkpoints(request, comm);
  Shown shown;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    std::string const title = pair_title(request.a, request.b);
    shown.title = title + " · difference";
    shown.summary = *report.json.find("summary")->text() + "\n";
    shown.json = Json()
                     .set("reshard_view", 1)
                     .set("kind", "difference")
                     .set("title", title)
                     .set("made_by", made_by())
                     .set("difference", std::move(report.json))
                     .dump();
  });
  return shown;
}

Shown shown_layout(ViewQuery const& query, Comm const& comm) {
  LayoutView view;
  if (query.job)
    with_key_places(*query.job, [&] { view = job_view(query, comm); });
  else
    view = checkpoint_view(query, comm);
  view.made_by = made_by();
  return {view.title + " · layout", comm.rank() == 0 ? layout_json(view) : "", ""};
}

}  // namespace

ViewOutput view(ViewQuery const& query, Comm const& comm) {
  std::optional<PageFile> file;
  bool const to_file = query.output && *query.output != "-";
  together(comm, [&] {
    if (comm.rank() == 0 && to_file) file.emplace(*query.output, taken_places(query));
  });
  ViewOutput out;
  Shown const shown =
      query.compare ? shown_difference(*query.compare, comm) : shown_layout(query, comm);
  together(comm, [&] {
    if (comm.rank() != 0) return;
    if (query.json) out.text = shown.json + "\n";
    if (!query.output) return;
    std::string const html = page_html(query.compare ? difference_assets() : layout_assets(),
                                       shown.title, shown.json, query.data);
    if (!to_file) out.text = html;
    if (!file) return;
    file->write(html);
    if (!query.json)
      out.text = fmt::format("{}{}: {}. Open it in a browser.\n", shown.summary,
                             shown_name(query.output->string()), human_bytes(html.size()));
  });
  return out;
}

}  // namespace reshard
