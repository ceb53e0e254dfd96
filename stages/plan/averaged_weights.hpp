#pragma once

#include <string>
#include <vector>

#include "core/base/json.hpp"
#include "core/formats/checkpoint.hpp"
#include "core/formats/target.hpp"
#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// Makes every floating weight of the source's catalog the mean of its own values and those of its
/// counterparts in Checkpoint::averaged: the same name, shape and box there. Done after all other
/// changes of values, so that each is rounded once. Numbers that are not floating are the source's;
/// a warning names them. An Error of kind source where a counterpart is missing or differs in its
/// shape or boxes, or has weights beside them, or a config that changes the model, and where values
/// have no mean: optimizer state, quantised weights.
void average_weights(Checkpoint const& source, PlanRequest const& request, Model const& model,
                     Catalog& catalog, std::vector<std::string>& warnings);

/// For the record of the target: of each averaged checkpoint its path, format and iteration.
Json average_record(Checkpoint const& source);

}  // namespace reshard
