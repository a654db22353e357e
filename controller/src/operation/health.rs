//! Volume health.

use super::Operations;
use super::deadline;
use super::lookup::{PAGE_ENTRIES_MAX, not_found};
use crate::backend::{Health, UnhealthyPage, Volume};
use belay_server::call::Failure;
use belay_server::health::Conditions;
use belay_server::request::{GetVolumeHealth, ListVolumeHealth};

impl Operations {
    /// The health of the volume.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` if the backend does not report health.
    pub async fn health(&self, request: GetVolumeHealth) -> Result<Conditions, Failure> {
        let asked = self.judge()?.health(request.id.clone(), request.secrets);
        let condition = deadline::enforce(&format!("volume {}", request.id), asked).await?;
        condition.ok_or_else(|| not_found(&request.id))
    }

    /// A page of unhealthy volumes.
    ///
    /// # Errors
    /// `BadToken` for an unknown token; `Unsupported` if the backend does not report health.
    pub async fn list_health(&self, request: ListVolumeHealth) -> Result<UnhealthyPage, Failure> {
        let limit = request
            .max_entries
            .unwrap_or(PAGE_ENTRIES_MAX)
            .min(PAGE_ENTRIES_MAX);
        let judge = self.judge()?;
        let asked = judge.list_unhealthy(request.starting_token, limit, request.secrets);
        deadline::enforce("the list of unhealthy volumes", asked).await
    }

    /// The health of each of these volumes, in their order; none if the backend does not report
    /// health. A volume that was deleted meanwhile has no health reasons.
    ///
    /// # Errors
    /// Those of the backend.
    pub async fn conditions(&self, volumes: &[Volume]) -> Result<Option<Vec<Conditions>>, Failure> {
        let Some(judge) = self.backend.health() else {
            return Ok(None);
        };
        let volumes = volumes.iter();
        let volumes = volumes.map(|volume| (volume.id.clone(), volume.bytes));
        let asked = judge.conditions(volumes.collect());
        let conditions = deadline::enforce("the condition of volumes", asked).await?;
        Ok(Some(conditions))
    }

    fn judge(&self) -> Result<&dyn Health, Failure> {
        let why = "this driver does not report volume health";
        self.backend
            .health()
            .ok_or_else(|| Failure::unsupported(why))
    }
}
